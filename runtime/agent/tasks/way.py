"""A task's way, from the claim to the forgotten container: what the next step is, and taking it.

``advance`` takes as many steps as it can and returns when something has to come first: the server's answer, an
image, a program's end. Whoever brings that calls ``advance`` again. Calls for one claim never overlap, each
step is written down before it acts, and a crash leaves nothing but "do the step of this stage again".
"""

from __future__ import annotations

import logging
import sqlite3

from runtime.agent.drivers.driver import Facts
from runtime.agent.drivers.errors import DriverError, EngineUnavailable, NotThere
from runtime.agent.tasks.claiming import Claiming
from runtime.agent.tasks.classify import (
    NOT_RUN,
    Circumstances,
    Conclusion,
    Sent,
    StopReason,
    classify,
    ended_with_engine,
)
from runtime.agent.tasks.delivery import Outbound
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.outages import Outages
from runtime.agent.tasks.parts import Claims, Parts
from runtime.agent.tasks.preparing import Preparing
from runtime.agent.tasks.pulling import end_without_image
from runtime.agent.tasks.records import Stage
from runtime.agent.tasks.steps import Step
from runtime.agent.tasks.turn import Turn
from runtime.agent.tasks.watch import Watch
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Status

log = logging.getLogger(__name__)

ENGINE_PATIENCE_S = 120.0
"""How long a claim that has not started waits for an engine that is away, before it is handed back."""


class Way:
    """Advances claims on the workers of ``parts``."""

    def __init__(self, parts: Parts, claims: Claims, outages: Outages, word: ServerWord) -> None:
        self._parts = parts
        self._outages = outages
        self._watch = Watch(parts, self.advance)
        self._outbound = Outbound(parts, claims, word, self.advance)
        self._turn = Turn(parts, claims, self._watch, self._outbound, self.advance)
        self._claiming = Claiming(self._turn)
        self._preparing = Preparing(self._turn, self._claiming)
        self._steps = {
            Stage.CLAIMING: self._claiming.claim,
            Stage.CLAIMED: self._preparing.prepare,
            Stage.CREATED: self._preparing.start,
            Stage.STARTING: self._look,
            Stage.RUNNING: self._look,
            Stage.CONCLUDED: self._deliver,
            Stage.DONE: self._clear,
        }

    def advance(self, held: Held) -> None:
        """Put the claim's next steps to the workers; any thread, returns at once."""
        self._parts.steps.submit(held.name, lambda: self._advance(held))

    def abandon(self, held: Held, why: str) -> None:
        """Another attempt, node or end is the valid one."""
        self._turn.abandon(held, why)

    def lost(self, held: Held) -> None:
        """The container had started, is gone, and the server still counts on it."""

        text = "the container had started and is gone without a trace"
        self._conclude_if(held, (Stage.STARTING, Stage.RUNNING), Reason.LOST_CONTAINER, text)

    def unknown(self, held: Held) -> None:
        """A claim that was taken back: neither journal nor container tell what became of it."""
        text = "the node lost its journal, and no container of the task is there"
        self._conclude_if(held, (Stage.CLAIMED,), Reason.END_UNKNOWN, text)

    def _conclude_if(self, held: Held, stages: tuple[Stage, ...], reason: Reason, text: str) -> None:
        def conclude() -> None:
            if held.record.stage in stages:
                self._turn.end(held, Conclusion(Status.FAILED, reason, error=text), None)
                self._advance(held)

        self._parts.steps.submit(held.name, conclude)

    def _advance(self, held: Held) -> None:
        while not self._parts.stop_event.is_set():
            try:
                if not self._steps[held.record.stage](held):
                    return
            except EngineUnavailable as away:
                self._engine_is_away(held, str(away))
                return
            except (DriverError, sqlite3.Error, OSError) as error:
                # The step was not taken, or nobody knows: it is taken again.
                text = f"{type(error).__name__}: {error}"
                if held.detail != text:
                    log.warning("task %s: %s; trying again", held.record.task_id, text)
                held.detail = text
                self._turn.again(held)
                return
            held.pauses.reset()

    # From the start to the end

    def _look(self, held: Held) -> bool:
        """One inspection of a container that was told to start, and what follows from it."""
        parts = self._parts
        container_id = held.record.container_id
        if container_id is None:
            return False
        try:
            facts = parts.driver.inspect(container_id)
        except NotThere:
            held.alive = False
            held.enter(held.phase, "its container is gone")
            return False  # reconciliation decides
        held.engine_away_since = None
        held.alive = facts.running
        if facts.ended or (facts.state == "created" and held.record.start_error is not None):
            return self._ended(held, facts)
        if facts.state == "created":
            if held.want is not None:
                return self._preparing.end_unstarted(held)
            parts.write(held, stage=Stage.CREATED)  # the start call had no effect
            return True
        if held.record.stage is Stage.STARTING and facts.started_at is not None:
            parts.step(held, Step.STARTED)
            started = self._watch.started_mono(held, facts)
            parts.write(
                held, stage=Stage.RUNNING, started_mark=parts.boot, started_mono=started, started_wall=parts.wall()
            )
            held.secret_spec = None
            if held.record.mounts and self._preparing.swapped(held):
                held.stop(StopReason.VOLUME)
        self._watch.arm(held, facts)
        self._watch.note_ready(held)
        if held.want is not None or held.record.stop is not None:
            self._watch.end(held, facts)
        return False

    def _ended(self, held: Held, facts: Facts) -> bool:
        parts, record = self._parts, held.record
        parts.step(held, Step.ENDED)
        self._watch.disarm(held)
        stop = record.stop
        if stop is None and held.want is StopReason.STALE:
            held.superseded = True
        seen = Circumstances(
            stop=stop,
            start_error=record.start_error,
            missing_program=parts.driver.missing_program(facts.id) if facts.exit_code in NOT_RUN else None,
            host_restarted=record.machine_restarted(parts.boot),
            engine_restarted=ended_with_engine(
                facts,
                parts.driver.started_at(),
                parts.engine.live_restore,
                self._outages.covers(facts.finished_at),
            ),
        )
        if stop is not None and stop.sent is Sent.INTENDED:
            log.info("task %s ended while its stop was on the way", record.task_id)
        return self._turn.end(held, classify(facts, seen), facts)

    # After the end

    def _deliver(self, held: Held) -> bool:
        if held.superseded:
            self._outbound.archive(held, "superseded")
            return True
        self._outbound.report(held)
        return False

    def _clear(self, held: Held) -> bool:
        self._outbound.remove(held)
        return False

    # Waiting for the engine

    def _engine_is_away(self, held: Held, text: str) -> None:
        """Nothing is known. What had started waits for ever; what had not is handed back after a while."""
        now = self._parts.clock()
        if held.engine_away_since is None:
            held.engine_away_since = now
        if held.record.stage is Stage.CLAIMED and now - held.engine_away_since >= ENGINE_PATIENCE_S:
            self._turn.end(held, end_without_image(Reason.ENGINE_UNAVAILABLE, text), None)
            self.advance(held)
            return
        held.detail = text
        self._turn.again(held)
