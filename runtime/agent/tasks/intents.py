"""What the operator wants, as each heartbeat's answer tells: stop and delete, sleep and wake; and what became of tasks
that the server does not name any more. Those are asked about one by one, and only a clear word lets them go."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from runtime.agent.link.errors import LinkError, Refused
from runtime.agent.tasks.classify import StopReason
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.reconcile import Server
from runtime.agent.tasks.records import KEPT_STAGES, Key, Stage, claim_for
from runtime.agent.tasks.report import OVER_DELETED, over_as, tells_the_end
from runtime.agent.tasks.zombies import ServerWord, read_task
from runtime.protocol.states import Desired, Status
from runtime.protocol.tasks import AssignedGpu, Task

if TYPE_CHECKING:
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.agent.tasks.way import Way
    from runtime.protocol.heartbeat import HeartbeatAnswer, Intent

log = logging.getLogger(__name__)

QUIET_S = 10.0
"""A claim younger than this may be missing from an answer that was on its way already."""

ASK_EVERY_S = 5.0
REPORT_AGAIN_S = 5.0
TELL_AGAIN_BEATS = 6.0
TELL_AGAIN_LEAST_S = 10.0
"""An answer that was on its way when an end was stored is younger than so many beats, and than this."""

OPEN = (Stage.CLAIMED, Stage.CREATED, *KEPT_STAGES)
ENDING = (Desired.STOP.value, Desired.DELETE.value)
_HELD = (Status.RUNNING.value, Status.SLEEPING.value)


def wakes(intent: Intent, gpus: Sequence[AssignedGpu]) -> bool:
    """Whether the server wants this sleeper to run now: it says so, and all the cards that it had are its own. Pure."""
    cards = {gpu.uuid for gpu in gpus}
    return (
        intent.status == Status.SLEEPING.value
        and intent.desired == Desired.RUN.value
        and cards == set(intent.gpus or ())
    )


class Intents:
    """Takes each good heartbeat's answer; returns at once."""

    def __init__(self, parts: Parts, claims: Claims, way: Way, word: ServerWord) -> None:
        self._parts = parts
        self._claims = claims
        self._way = way
        self._word = word
        self._asked: dict[Key, float] = {}
        self._named: dict[Key, Intent] = {}
        self._named_by: Optional[str] = None

    @property
    def remembered(self) -> int:
        """How many claims have been asked about and are still held."""
        return len(self._asked)

    def named(self, key: Key) -> bool:
        """Whether the newest answer named this attempt as the server's own view."""
        return key in self._named

    def shown(self, key: Key) -> Optional[Intent]:
        """What the newest answer says of this attempt; None when it does not name it."""
        return self._named.get(key)

    def unaccounted(self) -> list[tuple[Key, Intent, str]]:
        """Attempts that the server holds as running or asleep here, of which this agent knows nothing: neither claim
        nor conclusion; with the control plane that says so."""
        named, by = self._named, self._named_by
        if self._word.lost is not None:
            return []  # it may have ended here, or gone on elsewhere, in the time that the server has lost
        return [
            (key, intent, by)
            for key, intent in named.items()
            if by is not None
            and intent.status in _HELD
            and self._claims.get(key) is None
            and self._parts.journal.letter(key) is None
        ]

    def forget(self) -> None:
        """What was answered was for another instance."""
        self._named, self._named_by = {}, None

    def on_answer(self, answer: HeartbeatAnswer) -> None:
        now = self._parts.clock()
        wanted = {Key(intent.uid, intent.attempt): intent for intent in answer.intents}
        newest: dict[str, int] = {}
        for key in wanted:
            newest[key.uid] = max(key.attempt, newest.get(key.uid, -1))
        self._named, self._named_by = wanted, answer.control_plane_id
        self._word.heard(answer.control_plane_id, answer.revision, answer.lost)
        self._tell_again(answer)
        for held in self._claims.all():
            if held.record.control_plane_id != answer.control_plane_id:
                continue
            if held.record.stage is Stage.CONCLUDED:
                failed = held.report_failed_at
                if failed is not None and not held.reporting and now - failed >= REPORT_AGAIN_S:
                    self._way.advance(held)
            elif held.record.stage in OPEN:
                intent = wanted.get(held.key)
                if intent is not None:
                    self._word.found(held.key)
                    if intent.desired in ENDING:
                        self._stop(held)
                    else:
                        self._sleep_or_wake(held, intent)
                elif newest.get(held.key.uid, -1) > held.key.attempt:
                    self._way.abandon(held, "this node was given a later attempt")
                elif now - held.taken_at >= QUIET_S and now - self._asked.get(held.key, -ASK_EVERY_S) >= ASK_EVERY_S:
                    self._asked[held.key] = math.inf  # until this question has its answer
                    self._ask_later(held)
        for key in [key for key in self._asked if self._claims.get(key) is None]:
            self._asked.pop(key, None)

    def _tell_again(self, answer: HeartbeatAnswer) -> None:
        """A server that counts on an attempt whose end it was told has lost what it was told: say it again."""
        for intent in answer.intents:
            key = Key(intent.uid, intent.attempt)
            if intent.status not in _HELD or self._claims.get(key) is not None:
                continue
            letter = self._parts.journal.letter(key)
            if letter is None or not tells_the_end(letter) or letter.control_plane_id != answer.control_plane_id:
                continue
            assert letter.delivered_at is not None
            age = self._parts.wall() - letter.delivered_at
            if answer.lost is None and age < max(TELL_AGAIN_LEAST_S, TELL_AGAIN_BEATS * answer.interval_s):
                continue  # this answer may have been on its way before the end was stored
            log.warning("task %s: the server has lost its end; it is told again", letter.task_id)
            record = claim_for(letter)
            self._parts.journal.conclude(record, letter)
            held = Held(record, taken_at=self._parts.clock())
            if self._claims.add(held):
                self._way.advance(held)

    def _ask_later(self, held: Held) -> None:
        def ask() -> None:
            try:
                self._ask(held)
            finally:
                self._asked[held.key] = self._parts.clock()

        self._parts.reports.submit(f"ask/{held.name}", ask)

    def _stop(self, held: Held) -> None:
        if held.want is None:
            held.stop(StopReason.OPERATOR)
            self._way.advance(held)

    def _sleep_or_wake(self, held: Held, intent: Intent) -> None:
        """Only what runs is put to sleep: what is on its way to a start gets there first. It is woken when the cards
        that it had are its own again."""
        record = held.record
        if record.stage not in (Stage.RUNNING, Stage.SLEEPING):
            return
        status = Status(intent.status) if intent.status in _HELD else None
        if status is not None and not held.reporting:
            held.told = status
        asleep = record.stage is Stage.SLEEPING
        lost = self._word.lost is not None  # then what it wants may be long over, and the cards another task's
        held.wake = asleep and not lost and wakes(intent, record.gpus)
        if asleep:
            if held.wake or held.told is not Status.SLEEPING:
                self._way.advance(held)
        elif held.told is Status.SLEEPING:
            self._way.advance(held)
        elif intent.desired == Desired.SLEEP.value and not lost and held.want is None and record.stop is None:
            held.stop(StopReason.SLEEP)
            self._way.advance(held)

    def _ask(self, held: Held) -> None:
        parts, record = self._parts, held.record
        try:
            task = parts.client.task(record.task_id, record.claim_token)
        except Refused as refused:
            if self._word.says_deleted(held.key, record.control_plane_id, refused.problem, parts.clock()):
                held.over = OVER_DELETED
                self._way.abandon(held, "the server has deleted it")
            return
        except LinkError:
            return
        if task.uid != held.key.uid:
            by = parts.client.control_plane_id
            if self._word.says_given_anew(held.key, record.control_plane_id, by, parts.clock()):
                held.over = OVER_DELETED
                self._way.abandon(held, "the server has deleted it and given its id to another task")
            return
        self._word.found(held.key)
        self.take(held, task)

    def take(self, held: Held, task: Task) -> None:
        """What the server says of a held claim when it is asked."""
        view = read_task(task, held.key, self._parts.identity.node_id, self._parts.identity.former_node_ids)
        if view in (Server.ENDED, Server.MOVED):
            if view is Server.ENDED:
                held.over = over_as(task.status)
            self._way.abandon(held, f"the server says {task.status.value}, attempt {task.attempt}, node {task.node_id}")
        elif view is Server.OURS and task.desired in ENDING:
            self._stop(held)
