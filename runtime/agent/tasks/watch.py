"""A container that runs: its time limit, its probe, and its end by our hand (signal, grace, kill).

Nothing here waits. Timers say when to look again; a look is one inspection in a worker.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Optional

from runtime.agent.tasks.boot import running_for
from runtime.agent.tasks.classify import Sent, Stop, StopReason
from runtime.agent.tasks.probes import Answer, ProbeState, after_answer, ask, verdict
from runtime.agent.tasks.records import Stage
from runtime.agent.tasks.steps import Step
from runtime.protocol.states import Phase
from runtime.protocol.times import from_wire

if TYPE_CHECKING:
    from typing import Callable

    from runtime.agent.drivers.driver import Facts
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.parts import Parts
    from runtime.protocol.tasks import HealthProbe

log = logging.getLogger(__name__)

KILL_PATIENCE_S = 30.0
"""How long a killed container may stay before it is called stuck; it is killed again as often."""

LOOPBACK = "127.0.0.1"


class Watch:
    """Arms timers for running claims and ends containers. ``advance`` puts a claim's next step to the workers."""

    def __init__(self, parts: Parts, advance: Callable[[Held], None]) -> None:
        self._parts = parts
        self._advance = advance

    def started_mono(self, held: Held, facts: Facts) -> float:
        """When the container started, by the monotonic clock: as journalled in this run of the machine, else
        from the engine's own time of the start, but never before the start was asked for: the wall clock may have
        been set in between."""
        record, parts = held.record, self._parts
        if record.started_mono is not None and record.started_mark == parts.boot:
            return record.started_mono
        age = running_for(facts)
        if age is None and facts.started_at is not None:
            age = max(0.0, parts.wall() - from_wire(facts.started_at).timestamp())
        if record.asked_mono is not None and record.asked_mark == parts.boot:
            age = min(age or 0.0, parts.clock() - record.asked_mono)
        return parts.clock() - (age or 0.0)

    def asked_mono(self, held: Held, facts: Facts) -> Optional[float]:
        """A moment of the monotonic clock before which the container did not start; None when there is none in this
        run of the machine, and the engine's date of the start cannot be read."""
        record, parts = held.record, self._parts
        if record.asked_mono is not None and record.asked_mark == parts.boot:
            return record.asked_mono
        if record.started_mono is not None and record.started_mark == parts.boot:
            return record.started_mono
        return min(parts.engine_of(held).outages.moments(facts.started_at), default=None)

    def arm(self, held: Held, facts: Facts) -> None:
        """Time limit and probe, from the journal; calling it again changes nothing."""
        spec, started = held.record.spec, held.record.started_mono
        held.address = LOOPBACK if facts.network_mode == "host" else facts.address
        if started is None:
            return
        self._arm_limit(held, started)
        if spec.health is not None and held.probe is None:
            before = held.record.ready
            held.probe = ProbeState(started, begun=before, ready=None if before else False, healthy=before or None)
            held.enter(Phase.RUNNING if before else Phase.LOADING)
            self._parts.timers.after(("probe", held.name), 0.0, lambda: self._probe_is_due(held))
        elif spec.health is None and held.record.stop is None:
            held.enter(Phase.RUNNING)

    def arm_from_journal(self, held: Held) -> bool:
        """The time limit, without a look at the container; False where one is needed: for a probe, for what was
        started in another run of the machine, and for what slept meanwhile."""
        record = held.record
        if record.started_mono is None or record.started_mark != self._parts.boot:
            return False
        if record.spec.health is not None or record.slept_run is not None or record.stop is not None:
            return False
        self._arm_limit(held, record.started_mono)
        held.enter(Phase.RUNNING)
        return True

    def _arm_limit(self, held: Held, started: float) -> None:
        limit = held.record.spec.timeout_s
        if limit is not None and held.record.stop is None:
            due = started + limit - held.record.ran_before_s
            self._parts.timers.at(("timeout", held.name), due, lambda: self._time_is_up(held))

    def disarm(self, held: Held) -> None:
        """Nothing is due any more."""
        for kind in ("timeout", "probe", "kill", "again"):
            self._parts.timers.cancel((kind, held.name))

    def end(self, held: Held, facts: Facts) -> None:
        """Take the next step towards the container's end: journal, signal, kill."""
        parts = self._parts
        stop = held.record.stop
        if stop is None:
            assert held.want is not None
            parts.step(held, Step.JOURNAL_STOP)
            stop = Stop(held.want, parts.wall(), mono=parts.clock(), mark=parts.boot)
            parts.write(held, stop=stop, ran_before_s=held.record.ran_before_s + self._ran_for(held))
        held.enter(Phase.STOPPING, stop.reason.value)
        if stop.sent is Sent.INTENDED:
            parts.step(held, Step.SIGNAL)
            taken = parts.driver_of(held).signal(facts.id, facts.stop_signal)
            parts.write(held, stop=dataclasses.replace(stop, sent=Sent.SENT if taken else Sent.MISSED))
        now = parts.clock()
        if held.kill_at is None:
            grace = 0.0 if stop.reason is StopReason.VOLUME else held.record.spec.stop_grace_s
            held.kill_at = now + grace  # a program that has what it was not given gets no time to read it
        if now >= held.kill_at:
            if held.killed:
                held.enter(Phase.STUCK, "killed, and still there")
            log.info("task %s: killed after %g s of grace", held.record.task_id, held.record.spec.stop_grace_s)
            parts.driver_of(held).signal(facts.id, "SIGKILL")
            held.killed = True
            held.kill_at = now + KILL_PATIENCE_S
        parts.timers.at(("kill", held.name), held.kill_at, lambda: self._advance(held))

    def _ran_for(self, held: Held) -> float:
        """Seconds since the present start, for a program that is put to sleep: what comes after does not count."""
        started = held.record.started_mono
        if held.want is not StopReason.SLEEP or started is None:
            return 0.0
        return max(0.0, self._parts.clock() - started)

    def _time_is_up(self, held: Held) -> None:
        held.stop(StopReason.TIMEOUT)
        self._advance(held)

    def _probe_is_due(self, held: Held) -> None:
        if held.record.stage is Stage.RUNNING and held.record.stop is None:
            self._parts.probes.submit(held.name, lambda: self._probe(held))

    def _probe(self, held: Held) -> None:
        probe, state = held.record.spec.health, held.probe
        if probe is None or state is None or held.record.stage is not Stage.RUNNING or held.record.stop is not None:
            return
        answer, detail = self._ask(probe, held.address)
        if held.probe is not state or held.record.stop is not None:
            return  # it was put to sleep meanwhile, and maybe woken: this answer is about its former run
        now = self._parts.clock()
        after = after_answer(state, answer, detail, now, held.record.spec)
        held.probe = after
        if after.begun and not state.begun:
            self._advance(held)  # a worker writes it down
        reason = verdict(after, now, held.record.spec)
        if reason is not None:
            held.stop(reason)
            self._advance(held)
            return
        self._parts.timers.after(("probe", held.name), self._pause(held, probe, now), lambda: self._probe_is_due(held))

    def _pause(self, held: Held, probe: HealthProbe, now: float) -> float:
        """Until the next probe; the start limit is met on time."""
        limit, started = held.record.spec.start_timeout_s, held.record.started_mono
        if limit is None or started is None or (held.probe is not None and held.probe.begun):
            return probe.interval_s
        return max(0.05, min(probe.interval_s, started + limit - now))

    @staticmethod
    def _ask(probe: HealthProbe, address: Optional[str]) -> tuple[Answer, str]:
        if address is None:
            return Answer.NOT_READY, "the container has no address"
        return ask(probe, address)

    def note_ready(self, held: Held) -> None:
        """The first success, on disk: a restart of the agent does not begin a start period anew."""
        if held.probe is not None and held.probe.begun and not held.record.ready:
            self._parts.step(held, Step.PROBE_READY)
            self._parts.write(held, ready=True)
            if held.record.stop is None:
                held.enter(Phase.RUNNING)
