"""A task's way, from the claim to the forgotten container: what the next step is, and taking it.

``advance`` takes as many steps as it can and returns when something has to come first: the server's answer, an
image, a program's end. Whoever brings that calls ``advance`` again. Calls for one claim never overlap, each
step is written down before it acts, and a crash leaves nothing but "do the step of this stage again".
"""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
from collections.abc import Iterable
from typing import Callable

from runtime.agent.drivers.driver import Facts
from runtime.agent.drivers.errors import DriverError, EngineUnavailable, NotThere
from runtime.agent.tasks.claiming import Claiming
from runtime.agent.tasks.classify import (
    HOST_DOWN,
    NOT_RUN,
    Circumstances,
    Conclusion,
    Sent,
    StopReason,
    classify,
)
from runtime.agent.tasks.delivery import Outbound
from runtime.agent.tasks.engine_ends import ended_with_engine
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.mounting import Mounting
from runtime.agent.tasks.parts import Claims, Parts
from runtime.agent.tasks.preparing import Preparing
from runtime.agent.tasks.pulling import end_without_image
from runtime.agent.tasks.records import KEPT_STAGES, Key, Stage, is_partial
from runtime.agent.tasks.sleeping import Sleeping
from runtime.agent.tasks.steps import Step
from runtime.agent.tasks.turn import Turn
from runtime.agent.tasks.watch import Watch
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Status
from runtime.protocol.tasks import AssignedGpu, TaskSpec

log = logging.getLogger(__name__)

ENGINE_PATIENCE_S = 120.0
"""How long a claim that has not started waits for an engine that is away, before it is handed back."""


def _nothing() -> None:
    """Nothing has to be done before the steps."""


class Way:
    """Advances claims on the workers of ``parts``."""

    def __init__(self, parts: Parts, claims: Claims, word: ServerWord) -> None:
        self._parts = parts
        self._claims = claims
        self._watch = Watch(parts, self.advance)
        self._mounting = Mounting(parts)
        self._outbound = Outbound(parts, claims, word, self._mounting, self.advance)
        self._turn = Turn(parts, claims, self._watch, self._outbound, self.advance)
        self._claiming = Claiming(self._turn)
        self._preparing = Preparing(self._turn, self._claiming, self._mounting)
        self._sleeping = Sleeping(self._turn, self._mounting)
        self._steps = {
            Stage.CLAIMING: self._claiming.claim,
            Stage.CLAIMED: self._preparing.prepare,
            Stage.CREATED: self._preparing.start,
            Stage.STARTING: self._look,
            Stage.RUNNING: self._look,
            Stage.SLEEPING: self._sleeping.asleep,
            Stage.CONCLUDED: self._deliver,
            Stage.DONE: self._clear,
        }

    def advance(self, held: Held) -> None:
        """Put the claim's next steps to the workers; any thread, returns at once."""
        self._parts.steps.submit(held.name, lambda: self._advance(held))

    def take_up(self, held: Held) -> None:
        """After a start of the agent. What runs by the journal is watched from there on, whether or not anything can
        be asked about it: the lists tell when it does not run any more."""
        self._parts.steps.submit(held.name, lambda: None if self._watched(held) else self._advance(held))

    def adopt(self, held: Held, container_id: str) -> None:
        """A list shows its container running. What is watched already costs no inspection."""

        def look() -> None:
            due = held.want is not None or held.record.stop is not None
            if due or not self._watched(held):
                self._advance(held, lambda: self._catch_up(held, container_id))

        self._parts.steps.submit(held.name, look)

    def caught_up(self, held: Held, container_id: str) -> None:
        """A list shows its container ended."""
        self._parts.steps.submit(held.name, lambda: self._advance(held, lambda: self._catch_up(held, container_id)))

    def fill(self, held: Held, spec: TaskSpec, gpus: tuple[AssignedGpu, ...]) -> None:
        """What the server says of a claim that was taken over from a container's labels."""

        def write() -> None:
            if held.record.stage in KEPT_STAGES and is_partial(held.record.spec):
                self._parts.write(held, spec=spec, gpus=gpus)

        self._parts.steps.submit(held.name, lambda: self._advance(held, write))

    def abandon(self, held: Held, why: str) -> None:
        """Another attempt, node or end is the valid one."""
        self._turn.abandon(held, why)

    def sweep(self, containers: Iterable[Key]) -> None:
        """Let go of volumes that no claim and none of these containers (all that there are) needs."""
        self._mounting.sweep([held.key for held in self._claims.all()], containers)

    def lost(self, held: Held) -> None:
        """The container had started, is gone, and the server still counts on it."""
        outlives = self._parts.driver_of(held).outlives_machine
        if not outlives and held.record.machine_restarted(self._parts.boot):
            self._conclude_if(held, KEPT_STAGES, Reason.HOST_RESTARTED, HOST_DOWN)
            return
        text = "the container had started and is gone without a trace"
        self._conclude_if(held, KEPT_STAGES, Reason.LOST_CONTAINER, text)

    def unknown(self, held: Held) -> None:
        """A claim that was taken back: neither journal nor container tell what became of it."""
        text = "the node lost its journal, and no container of the task is there"
        self._conclude_if(held, KEPT_STAGES, Reason.END_UNKNOWN, text)

    def _conclude_if(self, held: Held, stages: tuple[Stage, ...], reason: Reason, text: str) -> None:
        def conclude() -> None:
            if held.record.stage in stages and self._claims.get(held.key) is held:
                self._turn.end(held, Conclusion(Status.FAILED, reason, error=text), None)
                self._advance(held)

        self._parts.steps.submit(held.name, conclude)

    def _watched(self, held: Held) -> bool:
        """Whether its limits are armed and it runs as far as is known; arms them where the journal is enough."""
        if held.record.stage is Stage.RUNNING and not held.watched:
            held.watched = self._watch.arm_from_journal(held)
        return held.record.stage is Stage.RUNNING and held.watched

    def _catch_up(self, held: Held, container_id: str) -> None:
        if held.record.stage in (Stage.CLAIMED, Stage.CREATED):
            self._turn.has_run(held, container_id)

    def _advance(self, held: Held, first: Callable[[], None] = _nothing) -> None:
        """Take steps until one has to wait. ``first`` is done before, and fails like a step."""
        while not self._parts.stop_event.is_set() and not held.waits and self._claims.get(held.key) is held:
            try:
                first()
                first = _nothing
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
            facts = parts.driver_of(held).inspect(container_id)
        except NotThere:
            held.alive = False
            if held.superseded:
                return self._preparing.end_unstarted(held)  # nothing is left to stop, and nobody waits for its end
            held.enter(held.phase, "its container is gone")
            return False  # reconciliation decides
        held.engine_away_since = None
        held.alive = facts.running
        if facts.restarts:
            log.warning("task %s: somebody had it restarted by the engine; taken back", held.record.task_id)
            parts.driver_of(held).never_restart(facts.id)
        if facts.ended and self._sleeping.did_not_wake(held, facts):
            return True
        if facts.ended or (facts.state == "created" and held.record.start_error is not None):
            return self._ended(held, facts)
        if facts.state == "created":
            if held.want is not None:
                return self._preparing.end_unstarted(held)
            if held.record.stage is Stage.RUNNING or held.record.machine_restarted(parts.boot):
                return self._forgotten(held, facts)
            parts.write(held, stage=Stage.CREATED)  # the start call had no effect
            return True
        if held.record.stage is Stage.STARTING and facts.started_at is not None:
            parts.step(held, Step.STARTED)
            started = self._watch.started_mono(held, facts)
            parts.write(
                held, stage=Stage.RUNNING, started_mark=parts.boot, started_mono=started, started_wall=parts.wall()
            )
            held.secret_spec = None
            if self._mounting.swapped(held, facts):
                held.stop(StopReason.VOLUME)
            elif facts.running:
                self._mounting.release(held.key)
        self._sleeping.tell(held)
        self._watch.arm(held, facts)
        held.watched = held.record.stage is Stage.RUNNING
        self._watch.note_ready(held)
        if held.want is not None or held.record.stop is not None:
            self._watch.end(held, facts)
        return False

    def _forgotten(self, held: Held, facts: Facts) -> bool:
        """It had started, or the machine went down just then, and the engine's own notes of it are lost: whether its
        program ran nobody can say, and it is not started a second time."""
        restarted = held.record.machine_restarted(self._parts.boot)
        reason = Reason.HOST_RESTARTED if restarted else Reason.END_UNKNOWN
        text = "the machine went down while it started" if restarted else "the engine has forgotten that it ran"
        return self._turn.end(held, Conclusion(Status.FAILED, reason, error=text), facts)

    def _ended(self, held: Held, facts: Facts) -> bool:
        parts, record = self._parts, held.record
        parts.step(held, Step.ENDED)
        self._watch.disarm(held)
        stop, engine = record.stop, parts.engine_of(held)
        if stop is None and held.want is StopReason.STALE:
            held.superseded = True
        unanswered = stop is not None and stop.sent is Sent.INTENDED
        seen = Circumstances(
            stop=stop,
            signalled=engine.driver.was_signalled(facts.id) if unanswered else None,
            moments=engine.outages.moments(facts.finished_at),
            mark=parts.boot,
            start_error=record.start_error,
            missing_program=engine.driver.missing_program(facts.id) if facts.exit_code in NOT_RUN else None,
            host_restarted=record.machine_restarted(parts.boot),
            engine_restarted=facts.started_at is not None
            and ended_with_engine(engine.around_end(facts, self._watch.asked_mono(held, facts))),
        )
        if unanswered:
            log.info("task %s ended while its stop was on the way", record.task_id)
        conclusion = classify(facts, seen)
        if conclusion.status is Status.SLEEPING:
            if not held.superseded:
                return self._sleeping.fall_asleep(held, facts)
            conclusion = dataclasses.replace(conclusion, status=Status.STOPPED)
        return self._turn.end(held, conclusion, facts)

    # After the end

    def _deliver(self, held: Held) -> bool:
        if held.superseded:
            self._outbound.archive(held, held.over)
            return True
        self._outbound.report(held)
        return False

    def _clear(self, held: Held) -> bool:
        self._outbound.remove_later(held)
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
