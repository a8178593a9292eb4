"""Taking tasks that the server has given this node: asked for when there is room, claimed on disk before any step."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from runtime.agent.link.errors import LinkError, Refused
from runtime.agent.loop import Backoff, Loop
from runtime.agent.tasks.claim import claim_update, new_claim_token
from runtime.agent.tasks.confidential import without_secrets
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage, claim_for
from runtime.agent.tasks.report import tells_the_end
from runtime.agent.tasks.steps import Step
from runtime.protocol.states import Driver as DriverName
from runtime.protocol.tasks import Task, TaskSpec

if TYPE_CHECKING:
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.agent.tasks.way import Way
    from runtime.agent.tasks.zombies import ServerWord

log = logging.getLogger(__name__)

TAKE_AT_ONCE = 20


class Taking:
    """``loop`` asks; it does nothing as long as nobody has said that there is something (:meth:`wake`)."""

    def __init__(self, parts: Parts, claims: Claims, way: Way, word: ServerWord) -> None:
        self._parts = parts
        self._claims = claims
        self._way = way
        self._word = word
        self._wanted = threading.Event()
        self.loop = Loop("tasks", parts.settings.poll_interval_s, self.take, backoff=Backoff(1.0, 20.0))

    def wake(self) -> None:
        """There may be tasks to take."""
        self._wanted.set()
        self.loop.wake()

    def go_on(self) -> None:
        """An engine answers: what waited for that is taken now."""
        if self._wanted.is_set():
            self.loop.wake()

    def take(self) -> None:
        """Ask for scheduled tasks, when somebody said that there are some and there is room."""
        if not self._wanted.is_set() or not self._parts.proven or self._word.lost is not None:
            return  # a server that was put back may offer what has run long since
        room = min(TAKE_AT_ONCE, self._parts.settings.max_tasks - self._claims.used())
        able = [name for name, engine in self._parts.drivers.items() if engine.answers]
        if room <= 0 or not able:
            return
        self._wanted.clear()
        try:
            tasks = self._parts.client.scheduled_tasks(room)
        except Refused:
            raise  # as long as the server refuses this agent there is nothing to take; a good beat tells anew
        except Exception:
            self._wanted.set()
            raise
        for task in tasks:
            if (task.driver or DriverName.DOCKER) in able:
                self._claim(task)
        if len(tasks) == TAKE_AT_ONCE:
            self.wake()

    def _claim(self, task: Task) -> None:
        parts = self._parts
        key = Key(task.uid, task.attempt)
        control_plane = parts.client.control_plane_id
        if self._claims.of_uid(task.uid) or control_plane is None:
            return  # held already, or an earlier attempt is not gone from here yet
        letter = parts.journal.letter(key)
        if letter is not None and letter.control_plane_id == control_plane:
            self._claim_again(letter)
            return
        record = ClaimRecord(
            key=key,
            task_id=task.id,
            control_plane_id=control_plane,
            claim_token=new_claim_token(),
            stage=Stage.CLAIMING,
            spec=without_secrets(task.spec or TaskSpec(name=task.name or task.id)),
            gpus=tuple(task.gpus_assigned or ()),
            driver=task.driver or DriverName.DOCKER,
        )
        held = Held(record, taken_at=parts.clock())
        parts.step(held, Step.JOURNAL_CLAIM)
        parts.journal.save(record)
        if self._claims.add(held):
            self._way.advance(held)

    def _claim_again(self, letter: Letter) -> None:
        """A server that offers an attempt which has ended here has lost its claim and its end. The claim is stored
        under its own token and nothing is started; the end is told when the server shows it as running."""
        if not tells_the_end(letter):
            return
        log.warning(
            "task %s: the server offers an attempt that has ended here; its claim is told again", letter.task_id
        )
        try:
            self._parts.client.update_task(
                letter.task_id, claim_update(self._parts.identity.node_id, claim_for(letter))
            )
        except LinkError as error:
            log.warning("task %s: its claim is not told again yet: %s", letter.task_id, error)
