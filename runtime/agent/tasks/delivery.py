"""The end of a task's way: the conclusion into the outbox, the report, the container's removal."""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.errors import DriverError, NotThere
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.link.retry import RetryPolicy, retrying
from runtime.agent.tasks.records import KEPT_STAGES, Letter, Stage, unconcluded
from runtime.agent.tasks.report import Delivery, move_update, policy_of, read_refusal, report_update, without_log
from runtime.agent.tasks.steps import Step
from runtime.protocol.states import Phase, Status
from runtime.protocol.tasks import LOG_TAIL_BYTES
from runtime.protocol.times import now, to_wire

if TYPE_CHECKING:
    from typing import Callable

    from runtime.agent.drivers.driver import Driver, Facts
    from runtime.agent.tasks.classify import Conclusion
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.mounting import Mounting
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.agent.tasks.zombies import ServerWord

log = logging.getLogger(__name__)

REMOVAL_PAUSE_S = 5.0
REMOVAL_PAUSE_MAX_S = 600.0


class _RunsAgain(DriverError):
    """Somebody started a container whose end is delivered: its cards may be another task's by now."""


class Outbound:
    """Reports run on workers of their own, so that a server that is away holds up no step of another task."""

    def __init__(
        self, parts: Parts, claims: Claims, word: ServerWord, mounting: Mounting, advance: Callable[[Held], None]
    ) -> None:
        self._parts = parts
        self._claims = claims
        self._word = word
        self._mounting = mounting
        self._advance = advance

    def conclude(self, held: Held, conclusion: Conclusion, facts: Optional[Facts]) -> None:
        """The verdict and the log's tail, on disk before anybody is told."""
        parts, record = self._parts, held.record
        parts.step(held, Step.CONCLUDE)
        held.enter(Phase.ENDED)
        held.alive = False
        if held.superseded and parts.journal.letter(record.key) is not None:
            # Its end was told long ago; this is what was left of it, and no second end is drawn.
            parts.write(held, stage=Stage.DONE)
            return
        tail = self._log_tail_of(held, facts)
        error = parts.masked(held, conclusion.error) if conclusion.error else None
        letter = Letter(
            key=record.key,
            task_id=record.task_id,
            control_plane_id=record.control_plane_id,
            claim_token=record.claim_token,
            from_status=Status.SLEEPING if record.stage is Stage.SLEEPING else Status.RUNNING,
            status=conclusion.status,
            reason=conclusion.reason.value,
            exit_code=conclusion.exit_code,
            error=error,
            log_tail=tail,
            node_finished_at=(facts.finished_at if facts is not None else None) or to_wire(now()),
            container_id=record.container_id,
            spec=record.spec,
            gpus=record.gpus,
            driver=record.driver,
            warnings=conclusion.warnings,
        )
        parts.journal.conclude(record, letter)
        held.record = dataclasses.replace(record, stage=Stage.CONCLUDED)
        held.secret_spec = None
        beside = "; ".join([*([error] if error else []), *(warning.detail for warning in letter.warnings)])
        log.info("task %s (attempt %d) ended: %s, %s, exit code %s%s", record.task_id, record.key.attempt,
                 letter.status.value, letter.reason, letter.exit_code, f" ({beside})" if beside else "")  # fmt: skip

    def report(self, held: Held) -> None:
        """Bring it to the server, in the background."""
        if held.reporting:
            return
        held.reporting = True
        held.enter(Phase.REPORTING)
        self._parts.reports.submit(held.name, lambda: self._send(held))

    def archive(self, held: Held, outcome: str) -> None:
        """Nobody waits for this conclusion; it is kept, and the container may go."""
        self._parts.journal.delivered(held.record, outcome, self._revision_of(held))
        held.record = dataclasses.replace(held.record, stage=Stage.DONE)

    def remove_later(self, held: Held) -> None:
        """On workers of their own: an engine may take minutes over a container that is stuck, and no step of another
        task waits for that."""
        if held.removing or self._parts.clock() < held.remove_at:
            return
        held.removing = True
        self._parts.removals.submit(held.name, lambda: self._removed(held))

    def _removed(self, held: Held) -> None:
        try:
            self.remove(held)
        except (sqlite3.Error, OSError) as error:
            log.warning("task %s: that it is over cannot be noted: %s", held.record.task_id, error)
            self._parts.timers.after(("again", held.name), REMOVAL_PAUSE_S, lambda: self._advance(held))
        finally:
            held.removing = False

    def remove(self, held: Held) -> None:
        """The container with its anonymous volumes, then the claim. A failure is tried again, ever more rarely."""
        parts, record = self._parts, held.record
        if record.container_id is not None:
            parts.step(held, Step.REMOVE)
            try:
                self._remove_container(parts.driver_of(held), record.container_id, held.removal_tries)
            except DriverError as error:
                held.removal_tries += 1
                pause = min(REMOVAL_PAUSE_MAX_S, REMOVAL_PAUSE_S * 2 ** min(held.removal_tries - 1, 10))
                if isinstance(error, _RunsAgain):
                    pause = max(pause, record.spec.stop_grace_s)
                text = f"its container cannot be removed: {error}"
                if held.detail != text:
                    log.warning("task %s: %s; trying again", record.task_id, text)
                held.enter(Phase.STUCK, text)
                held.remove_at = parts.clock() + pause
                parts.timers.after(("again", held.name), pause, lambda: self._advance(held))
                return
        self._mounting.release(record.key)
        parts.step(held, Step.FORGET)
        parts.journal.forget(record.key)
        parts.unlearn(held)
        self._claims.drop(record.key)

    @staticmethod
    def _remove_container(driver: Driver, container_id: str, tries: int) -> None:
        """The plain way first; then by force what does not run, and a signal to what runs again."""
        if tries == 0:
            driver.remove(container_id)
            return
        try:
            facts = driver.inspect(container_id)
        except NotThere:
            return
        if facts.running:
            driver.signal(container_id, facts.stop_signal if tries == 1 else "SIGKILL")
            raise _RunsAgain("it was started again after its end was reported, and is being stopped")
        log.warning("container %s is removed by force", container_id[:12])
        driver.remove(container_id, True)

    def _send(self, held: Held) -> None:
        """One round of tries. Whatever comes of it, the next one is possible."""
        stored = False
        try:
            stored = self._sent(held)
        except (sqlite3.Error, OSError) as error:
            # The server may have it and the journal cannot say so: it is told again, and answers that it knows.
            log.warning("task %s: its end cannot be noted as reported: %s", held.record.task_id, error)
        finally:
            if not stored:
                held.report_failed_at = self._parts.clock()
            held.reporting = False
        if stored:
            self._advance(held)

    def _sent(self, held: Held) -> bool:
        parts = self._parts
        letter = parts.journal.letter(held.key)
        if letter is None:
            # The journal was damaged while this was under way: the container tells again how it ended.
            log.error("task %s: its conclusion is not in the outbox; it is drawn anew", held.record.task_id)
            reopened = unconcluded(held.record)
            parts.journal.save(reopened)
            held.record = reopened
            self._advance(held)
            return False
        policy = policy_of(parts.settings)
        outcome: Optional[str] = None
        try:
            if parts.client.control_plane_id not in (None, letter.control_plane_id):
                raise Unavailable("another control plane answers; its end is for the one that gave the task")
            parts.step(held, Step.SEND_REPORT)
            # The log first: who waits for the end then has all of it. Not while the server is away: it can wait.
            again = held.report_failed_at is not None
            if not again:
                parts.last_words(held)
            outcome = self._once(letter, policy)
        except Unavailable as error:
            log.warning("task %s: its end is not reported yet: %s", held.record.task_id, error)
        except Refused as refused:
            log.warning("task %s: the server does not take its end: %s", held.record.task_id, refused)
        if outcome is None:
            return False
        parts.step(held, Step.REPORT_STORED)
        parts.journal.delivered(held.record, outcome, self._revision_of(held))
        held.record = dataclasses.replace(held.record, stage=Stage.DONE)
        if again:
            parts.last_words(held)
        return True

    def _revision_of(self, held: Held) -> Optional[int]:
        """How far the claim's control plane is known to have come."""
        return self._parts.client.seen.highest(held.record.control_plane_id)

    def _once(self, letter: Letter, policy: RetryPolicy) -> str:
        """What became of the letter; raises Refused when it is to be kept and tried again."""
        parts = self._parts
        update = report_update(parts.identity.node_id, letter)
        try:
            retrying(lambda: parts.client.update_task(letter.task_id, update), policy, parts.stop_event)
            return "stored"
        except Refused as refused:
            delivery = read_refusal(refused.problem, letter, parts.identity.node_id)
            if delivery is Delivery.SHORTER:
                return self._once(without_log(letter), policy)
            if delivery is Delivery.CATCH_UP:
                move = move_update(parts.identity.node_id, letter, letter.from_status)
                retrying(lambda: parts.client.update_task(letter.task_id, move), policy, parts.stop_event)
                return self._once(letter, policy)
            if delivery is Delivery.LATER:
                if self._word.says_deleted(letter.key, letter.control_plane_id, refused.problem, parts.clock()):
                    return "deleted"
                raise
            return str(delivery.value)

    def _log_tail_of(self, held: Held, facts: Optional[Facts]) -> Optional[str]:
        """Of what began, also where only its output is left."""
        driver, record = self._parts.driver_of(held), held.record
        if facts is not None:
            return self._log_tail(driver, facts.id) if facts.started_at is not None else None
        if driver.outlives_machine or record.container_id is None or record.stage not in KEPT_STAGES:
            return None
        return self._log_tail(driver, record.container_id)

    @staticmethod
    def _log_tail(driver: Driver, container_id: str) -> Optional[str]:
        try:
            raw = driver.log_rest(container_id, LOG_TAIL_BYTES, thorough=False).data
        except DriverError as error:
            log.warning("the log of container %s cannot be read: %s", container_id[:12], error)
            return None
        return readable(raw)


def readable(raw: bytes) -> str:
    """Output as text: what is not UTF-8 is replaced, NUL (which no database text holds) is left out. A cut at the
    front may have torn a character: its rest goes too."""
    start = 0
    while start < min(3, len(raw)) and raw[start] & 0xC0 == 0x80:
        start += 1
    return raw[start:].decode("utf-8", "replace").replace("\0", "")
