"""A container that was stopped to be started again: telling so, keeping it, waking it on its own cards, ending it.

While it sleeps its cards may be another task's, so it is started only while the server says that they are its own
again. What keeps it from being woken, and may pass, leaves it asleep and is said; what it holds is never given up
for that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.errors import EngineRefused, NotThere
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.link.retry import retrying
from runtime.agent.tasks.checks import CheckFailed, checked_gpus
from runtime.agent.tasks.classify import Conclusion, StopReason, start_failure
from runtime.agent.tasks.giving import moved
from runtime.agent.tasks.records import Stage
from runtime.agent.tasks.report import is_so_already, move_update, policy_of
from runtime.agent.tasks.steps import Step
from runtime.protocol.reasons import CLASS_OF, Reason, ReasonClass
from runtime.protocol.states import Phase, Status

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Facts
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.mounting import Mounting
    from runtime.agent.tasks.turn import Turn

log = logging.getLogger(__name__)

TELL_AGAIN_S = 5.0
WAKE_AGAIN_S = 15.0
OTHER_SOURCES = "its container was made with other mount sources than this agent holds, so it cannot be started safely"


class Sleeping:
    """Steps of a claim in the stage ``sleeping``, and what the server is told of falling asleep and waking."""

    def __init__(self, turn: Turn, mounting: Mounting) -> None:
        self._turn = turn
        self._parts = turn.parts
        self._mounting = mounting

    def fall_asleep(self, held: Held, facts: Facts) -> bool:
        """Its container ended by the signal that was sent to put it to sleep."""
        self._parts.write(held, stage=Stage.SLEEPING, slept_run=facts.started_at)
        if held.want not in (StopReason.OPERATOR, StopReason.STALE):
            held.want = None
        held.kill_at, held.killed, held.watched = None, False, False
        held.probe, held.address = None, None
        held.told = Status.RUNNING
        self._rests(held)
        log.info("task %s (attempt %d) sleeps", held.record.task_id, held.key.attempt)
        return True

    def did_not_wake(self, held: Held, facts: Facts) -> bool:
        """Whether the start that was asked for had no effect: then it still sleeps."""
        record = held.record
        if record.stage is not Stage.STARTING or record.slept_run is None or facts.started_at != record.slept_run:
            return False
        self._parts.write(held, stage=Stage.SLEEPING)
        self._rests(held)
        return True

    def asleep(self, held: Held) -> bool:
        """The step of the stage."""
        parts, record = self._parts, held.record
        if record.container_id is None:
            return False
        try:
            facts = parts.driver_of(held).inspect(record.container_id)
        except NotThere:
            if held.superseded:
                return self._turn.end(held, _ENDED, None)
            self._rests(held, "its container is gone")
            return False  # reconciliation decides
        held.engine_away_since = None
        held.alive = facts.running
        if facts.running:
            return self._goes_on(held, facts)
        if record.slept_run is None:
            parts.write(held, slept_run=facts.started_at)
        if held.superseded or held.want in (StopReason.OPERATOR, StopReason.STALE):
            return self._turn.end(held, Conclusion(_ENDED.status, _ENDED.reason, facts.exit_code), facts)
        self.tell(held)
        if held.wake:
            return self._wake(held, facts)
        self._rests(held)
        return False

    # Waking

    def _wake(self, held: Held, facts: Facts) -> bool:
        parts, record = self._parts, held.record
        assert record.container_id is not None
        try:
            checked_gpus(record.gpus, parts.snapshot())
            other = moved(parts, held, facts)
            if other is not None:
                return self._stays(held, other)
            if not self._mounting.stands(held):
                return self._stays(held, OTHER_SOURCES)
        except CheckFailed as failed:
            return self._failed(held, failed.reason, failed.text)
        held.enter(Phase.STARTING)
        parts.step(held, Step.JOURNAL_START)
        parts.write(
            held,
            stage=Stage.STARTING,
            asked_mark=parts.boot,
            asked_mono=parts.clock(),
            started_mark=None,
            started_mono=None,
            started_wall=None,
            ready=False,
            stop=None,
        )
        parts.step(held, Step.START)
        try:
            parts.driver_of(held).start(record.container_id)
        except NotThere:
            parts.write(held, stage=Stage.SLEEPING)
            self._rests(held, "its container is gone")
            return False  # reconciliation decides
        except EngineRefused as refusal:
            parts.write(held, stage=Stage.SLEEPING)
            verdict = start_failure(parts.masked(held, refusal.text))
            return self._failed(held, verdict.reason, verdict.error or refusal.text)
        return True

    def _failed(self, held: Held, reason: Reason, text: str) -> bool:
        """What the task itself did wrong ends it; what this node lacks now may come back."""
        if CLASS_OF[reason] is ReasonClass.PROGRAM:
            return self._turn.end(held, Conclusion(Status.FAILED, reason, error=text), None)
        return self._stays(held, text)

    def _stays(self, held: Held, text: str) -> bool:
        self._mounting.release(held.key)
        if held.detail != text:
            log.warning("task %s cannot be woken and goes on sleeping: %s", held.record.task_id, text)
        self._rests(held, f"cannot be woken: {text}")
        return self._turn.again(held, WAKE_AGAIN_S)

    def _goes_on(self, held: Held, facts: Facts) -> bool:
        """Somebody else started it, on cards that may be another task's: it is put to sleep again."""
        log.warning("task %s was started by somebody else while it slept", held.record.task_id)
        started = self._turn.started_mono(held, facts)
        self._parts.write(held, stage=Stage.RUNNING, stop=None, started_mark=self._parts.boot, started_mono=started)
        held.stop(StopReason.STALE if held.superseded else StopReason.SLEEP)
        return True

    @staticmethod
    def _rests(held: Held, detail: Optional[str] = None) -> None:
        held.alive = False
        held.enter(Phase.SLEEPING, detail)

    # Telling

    def tell(self, held: Held) -> None:
        """Let the server know whether it sleeps or runs, where it does not; in the background, returns at once."""
        record = held.record
        target = Status.SLEEPING if record.stage is Stage.SLEEPING else Status.RUNNING
        knows = held.told is target or (held.told is None and record.slept_run is None)
        if knows or held.reporting or self._parts.clock() < held.tell_at:
            return
        held.reporting = True
        self._parts.reports.submit(held.name, lambda: self._tell(held, target))

    def _tell(self, held: Held, target: Status) -> None:
        stored = False
        try:
            stored = self._stored(held, target)
        finally:
            if stored:
                held.told = target
            else:
                held.tell_at = self._parts.clock() + TELL_AGAIN_S
                self._parts.timers.after(("tell", held.name), TELL_AGAIN_S, lambda: self._turn.advance(held))
            held.reporting = False
        if stored:
            self._turn.advance(held)

    def _stored(self, held: Held, target: Status) -> bool:
        parts, record = self._parts, held.record
        if parts.client.control_plane_id not in (None, record.control_plane_id):
            return False
        update = move_update(parts.identity.node_id, record, target)
        parts.step(held, Step.SEND_REPORT)
        try:
            retrying(
                lambda: parts.client.update_task(record.task_id, update), policy_of(parts.settings), parts.stop_event
            )
        except Unavailable as error:
            log.warning("task %s: that it is %s is not told yet: %s", record.task_id, target.value, error)
            return False
        except Refused as refused:
            if not is_so_already(refused.problem, record, target):
                log.warning("task %s: the server does not take it as %s: %s", record.task_id, target.value, refused)
                return False
        parts.step(held, Step.REPORT_STORED)
        return True


_ENDED = Conclusion(Status.STOPPED, Reason.STOPPED_BY_OPERATOR)
