"""What the operator wants, as each heartbeat's answer tells: stop and delete, and what became of tasks that the
server does not name any more. Those are asked about one by one, and only a clear word lets them go."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Optional

from runtime.agent.link.errors import LinkError, Refused
from runtime.agent.tasks.classify import StopReason
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.reconcile import Server
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.agent.tasks.zombies import ServerWord, read_task
from runtime.protocol.states import Desired, Status
from runtime.protocol.tasks import Task, TaskSpec

if TYPE_CHECKING:
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.agent.tasks.way import Way
    from runtime.protocol.heartbeat import HeartbeatAnswer, Intent

log = logging.getLogger(__name__)

QUIET_S = 10.0
"""A claim younger than this may be missing from an answer that was on its way already."""

ASK_EVERY_S = 5.0
REPORT_AGAIN_S = 5.0
TELL_AGAIN_S = 30.0
OPEN = (Stage.CLAIMED, Stage.CREATED, Stage.STARTING, Stage.RUNNING)
ENDING = (Desired.STOP.value, Desired.DELETE.value)


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

    def unaccounted(self) -> list[tuple[Key, Intent, str]]:
        """Attempts that the server holds as running here, of which this agent knows nothing at all: neither claim
        nor conclusion; with the control plane that says so."""
        named, by = self._named, self._named_by
        return [
            (key, intent, by)
            for key, intent in named.items()
            if by is not None
            and intent.status == Status.RUNNING.value
            and self._claims.get(key) is None
            and self._parts.journal.letter(key) is None
        ]

    def on_answer(self, answer: HeartbeatAnswer) -> None:
        now = self._parts.clock()
        wanted = {Key(intent.uid, intent.attempt): intent for intent in answer.intents}
        newest: dict[str, int] = {}
        for key in wanted:
            newest[key.uid] = max(key.attempt, newest.get(key.uid, -1))
        self._named, self._named_by = wanted, answer.control_plane_id
        self._word.heard(answer.control_plane_id, answer.revision)
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
            if intent.status != Status.RUNNING.value or self._claims.get(key) is not None:
                continue
            letter = self._parts.journal.letter(key)
            if letter is None or letter.delivered_at is None or letter.control_plane_id != answer.control_plane_id:
                continue
            if self._parts.wall() - letter.delivered_at < TELL_AGAIN_S:
                continue  # this answer may have been on its way before the end was stored
            log.warning("task %s: the server has lost its end; it is told again", letter.task_id)
            record = ClaimRecord(
                key=key,
                task_id=letter.task_id,
                control_plane_id=letter.control_plane_id,
                claim_token=letter.claim_token,
                stage=Stage.CONCLUDED,
                spec=TaskSpec(name=letter.task_id),
            )
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

    def _ask(self, held: Held) -> None:
        record = held.record
        try:
            task = self._parts.client.task(record.task_id, record.claim_token)
        except Refused as refused:
            if self._word.says_deleted(held.key, record.control_plane_id, refused.problem, self._parts.clock()):
                self._way.abandon(held, "the server has deleted it")
            return
        except LinkError:
            return
        self._word.found(held.key)
        self.take(held, task)

    def take(self, held: Held, task: Task) -> None:
        """What the server says of a held claim when it is asked."""
        view = read_task(task, held.key, self._parts.identity.node_id)
        if view in (Server.ENDED, Server.MOVED):
            self._way.abandon(held, f"the server says {task.status.value}, attempt {task.attempt}, node {task.node_id}")
        elif view is Server.OURS and task.desired in ENDING:
            self._stop(held)
