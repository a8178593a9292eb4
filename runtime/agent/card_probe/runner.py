"""Runs the probes: one container at a time on each card that owes one and is well again.

A container with a probe's label that is no probe under way is removed, be it left by an earlier run of the agent, by a
call whose outcome is unknown, or by a removal that failed; until it is gone, its card gets no other.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Optional, Protocol

from runtime.agent.card_probe.decide import LINE_CHARS, Do, Situation, Step, Underway, last_line, next_step
from runtime.agent.card_probe.owed import NOT_YET, Owed, covered, held_by, parts_of, well
from runtime.agent.card_probe.plan import LABEL_PROBE, probe_plan
from runtime.agent.drivers.driver import LABEL_NODE
from runtime.agent.drivers.errors import DriverError, EngineRefused, NotThere
from runtime.agent.hardware.giving.description import NotGiven
from runtime.agent.hardware.visibility import container_options, given
from runtime.agent.loop import Backoff, Loop

if TYPE_CHECKING:
    from runtime.agent.card_probe.gate import Gate
    from runtime.agent.card_probe.memory import Memory
    from runtime.agent.drivers.driver import ContainerPlan, EngineFacts, Facts, Seen
    from runtime.agent.drivers.output import LogRest
    from runtime.agent.hardware.inventory import GpuSnapshot
    from runtime.agent.hardware_settings import HardwareSettings
    from runtime.protocol.hardware import Gpu

log = logging.getLogger(__name__)

NAME_PREFIX = "card-probe-"
REST_S = 5.0
WATCH_S = 1.0
AGAIN_FIRST_S = 10.0
AGAIN_MAX_S = 300.0
ROUND_DEADLINE_S = 600.0
"""An engine that hangs keeps one round that long at most: each call has a limit of its own."""
TAIL_BYTES = 4096
STOP_S = 3.0
MISSING_IMAGE = "its image {} is not on this node, and is never pulled for it"


class Images(Protocol):
    def present(self, image: str) -> bool: ...


class Engine(Protocol):
    """What is asked of the Docker driver; every call raises DriverError."""

    @property
    def images(self) -> Images: ...
    def engine(self) -> EngineFacts: ...
    def list_labelled(self, label: str) -> list[Seen]: ...
    def inspect(self, container_id: str) -> Facts: ...
    def create(self, plan: ContainerPlan, spare_name: str) -> str: ...
    def start(self, container_id: str) -> None: ...
    def remove(self, container_id: str, force: bool = False) -> None: ...
    def log_rest(self, container_id: str, limit_bytes: int, after: str = "", thorough: bool = True) -> LogRest: ...


@dataclass
class _Run:
    """A probe under way, since ``started`` on the monotonic clock."""

    container_id: str
    started: float
    start_error: Optional[str] = None


@dataclass
class _Pause:
    """Between two tries."""

    until: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(AGAIN_FIRST_S, AGAIN_MAX_S, least_s=AGAIN_FIRST_S))


class CardProbes:
    """``users``: card or slice -> the task or container that holds it, in words; None while that is not known."""

    def __init__(
        self,
        settings: HardwareSettings,
        gate: Gate,
        memory: Memory,
        engine: Engine,
        node_id: str,
        users: Callable[[], Optional[Mapping[str, str]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert settings.probe_image is not None
        self._image = settings.probe_image
        self._command = settings.probe_command
        self._timeout_s = settings.probe_timeout_s
        self._gate = gate
        self._memory = memory
        self._engine = engine
        self._node_id = node_id
        self._users = users
        self._clock = clock
        self._written: Optional[Mapping[str, Owed]] = None
        self._runs: dict[str, _Run] = {}
        self._pauses: dict[str, _Pause] = {}
        self._swept = False
        self._told_of_image = False
        self.loop = Loop("card-probes", REST_S, self.round, deadline_s=ROUND_DEADLINE_S)
        gate.on_change = self.loop.wake

    def stop(self) -> None:
        """No further probe; those under way are removed if the engine does it soon, else by the next start."""
        self.loop.stop()
        ids = [run.container_id for run in list(self._runs.values())]
        if ids:
            ending = threading.Thread(target=self._remove_all, args=(ids,), name="card-probes-end", daemon=True)
            ending.start()
            ending.join(STOP_S)

    def round(self) -> None:
        """One step for every card that owes a probe."""
        seen, owed = self._gate.debts()
        self._keep(owed)
        states = {uuid: well(uuid, seen) for uuid in owed}
        for uuid in [uuid for uuid in self._pauses if uuid not in owed]:
            del self._pauses[uuid]
        if self._swept and not self._runs and not any(states.values()):
            return
        try:
            left = self._sweep()
            self._look_for_image()
        except DriverError as error:
            self._swept = False
            for uuid in owed:
                text = (
                    f"probe container runs, as far as is known: {error}"
                    if uuid in self._runs
                    else f"{NOT_YET}: {error}"
                )
                self._gate.say(uuid, text)
            return
        users = self._users()
        for uuid in owed:
            card = seen.gpu(uuid)
            # A cut card's probe is one of all its slices.
            if card is None or card.parent_uuid not in owed or uuid in self._runs:
                self._one(uuid, card, seen, states[uuid], users, uuid in left)
        if self._runs and not self.loop.stopping:
            self.loop.delay_next(WATCH_S)

    def _keep(self, owed: Mapping[str, Owed]) -> None:
        if owed is self._written:
            return
        if not owed:
            self._memory.forget()
        elif not self._memory.write(owed):
            return
        self._written = owed

    def _look_for_image(self) -> None:
        """Once: whoever named the image should hear that it is missing before a card needs it."""
        if not self._told_of_image:
            if not self._engine.images.present(self._image):
                log.warning("hardware.probe_image: %s", MISSING_IMAGE.format(self._image))
            self._told_of_image = True

    def _sweep(self) -> set[str]:
        """Remove what is left of earlier probes; the cards on which something still is."""
        mine = {run.container_id for run in self._runs.values()}
        left = set()
        for seen in self._engine.list_labelled(LABEL_PROBE):
            if seen.labels.get(LABEL_NODE) == self._node_id and seen.id not in mine and not self._remove(seen.id):
                left.add(seen.labels.get(LABEL_PROBE, ""))
        self._swept = not left
        return left

    def _one(
        self,
        uuid: str,
        card: Optional[Gpu],
        seen: GpuSnapshot,
        is_well: Optional[bool],
        users: Optional[Mapping[str, str]],
        leftover: bool,
    ) -> None:
        run, pause = self._runs.get(uuid), self._pauses.setdefault(uuid, _Pause())
        try:
            others = {other: "another probe" for other in self._runs if other != uuid}
            situation = Situation(
                well=is_well,
                timeout_s=self._timeout_s,
                underway=None if run is None else self._look(run),
                users_known=users is not None,
                held_by=None if card is None else held_by(card, seen.gpus or (), {**others, **(users or {})}),
                leftover=leftover,
                due=self._clock() >= pause.until,
            )
            self._act(uuid, card, seen, next_step(situation), pause)
        except DriverError as error:
            self._swept = False
            self._gate.say(uuid, f"probe container: {error}")

    def _act(self, uuid: str, card: Optional[Gpu], seen: GpuSnapshot, step: Step, pause: _Pause) -> None:
        if step.do is Do.RUN and card is not None:
            self._run(card, seen, pause)
            return
        if step.said is not None:
            self._gate.say(uuid, step.said)
        if step.do is Do.WAIT:
            return
        run = self._runs.pop(uuid)
        if step.do is Do.PASSED and self._gate.paid([gpu.uuid for gpu in covered(card, seen)]):
            log.info("card %s: its probe ended with 0; it may be given out again", uuid)
        elif step.do is Do.FAILED:
            pause.until = self._clock() + pause.backoff.next()
            log.warning("card %s stays out: %s", uuid, step.said)
        if not self._remove(run.container_id):
            self._swept = False

    def _run(self, card: Gpu, seen: GpuSnapshot, pause: _Pause) -> None:
        engine, gpus, name = self._engine, parts_of(card, seen.gpus or ()), NAME_PREFIX + secrets.token_hex(6)
        refused: Optional[str] = None
        try:
            if not engine.images.present(self._image):
                refused = f"{NOT_YET}: {MISSING_IMAGE.format(self._image)}"
            else:
                options = given(gpus, seen, engine.engine().runtimes, container_options)
                plan = probe_plan(name, self._image, self._command, card, gpus, options, self._node_id)
                self._gate.begin([gpu.uuid for gpu in covered(card, seen)])
                self._swept = False  # until its id is known it is found by its label
                run = _Run(engine.create(plan, f"{name}-2"), self._clock())
        except NotGiven as error:
            refused = f"{NOT_YET}: {error}"
        except EngineRefused as refusal:
            refused = f"probe container could not be made: {refusal.text[:LINE_CHARS]}"
        if refused is not None:
            pause.until = self._clock() + pause.backoff.next()
            self._gate.say(card.uuid, refused)
            return
        self._runs[card.uuid] = run
        self._gate.own(run.container_id)
        self._gate.say(card.uuid, "probe container runs")
        try:
            engine.start(run.container_id)
        except EngineRefused as refusal:
            run.start_error = refusal.text[:LINE_CHARS]
        run.started = self._clock()

    def _look(self, run: _Run) -> Underway:
        ran_s = self._clock() - run.started
        try:
            facts = self._engine.inspect(run.container_id)
        except NotThere:
            return Underway(ran_s, there=False)
        ended = facts.ended
        return Underway(
            ran_s,
            ended=ended,
            exit_code=facts.exit_code if ended and facts.started_at is not None else None,
            start_error=run.start_error,
            last_line=self._last_line(run) if ended and facts.exit_code != 0 else "",
        )

    def _last_line(self, run: _Run) -> str:
        try:
            tail = self._engine.log_rest(run.container_id, TAIL_BYTES, thorough=False).data
        except DriverError:
            return ""
        return last_line(tail)

    def _remove_all(self, ids: Sequence[str]) -> None:
        for container_id in ids:
            self._remove(container_id)

    def _remove(self, container_id: str) -> bool:
        try:
            self._engine.remove(container_id, force=True)
        except DriverError as error:
            log.warning("probe container %s cannot be removed: %s", container_id[:12], error)
            return False
        return True
