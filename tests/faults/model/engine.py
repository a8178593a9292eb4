"""A container engine as a model: containers with states, and troubles of an engine's kind."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from runtime.agent.drivers.driver import ContainerPlan, EngineFacts, Facts, RunTimes, Seen
from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable, NotThere
from runtime.agent.drivers.output import LogRest
from runtime.protocol.times import from_epoch, to_wire

TERM, KILL, NOT_SEEN = 143, 137, 255
UP_S = 50.0
"""For how long a machine has been up when its engine and its agent start."""


@dataclass
class Run:
    """One start of a container. ``cause`` of its end: program, signal, engine or host. Times on the world's clock."""

    began: float
    ended: float | None = None
    code: int | None = None
    cause: str = ""
    began_wall: str = ""
    ended_wall: str = ""
    signalled: bool = False
    told: bool = False


@dataclass
class Container:
    id: str
    plan: ContainerPlan
    created: float
    runs: list[Run] = field(default_factory=list)
    removed: bool = False

    @property
    def running(self) -> bool:
        return bool(self.runs) and self.runs[-1].ended is None

    @property
    def state(self) -> str:
        return "created" if not self.runs else "running" if self.running else "exited"

    @property
    def key(self) -> tuple[str, int]:
        return self.plan.labels["heterofleet.uid"], int(self.plan.labels["heterofleet.attempt"])

    @property
    def cards(self) -> frozenset[str]:
        return frozenset(gpu.uuid for gpu in self.plan.gpus)


class Images:
    """All images are here."""

    spare = staticmethod(lambda: None)

    def present(self, image: str) -> bool:
        return True

    def list(self) -> list[str]:
        return ["app:1"]


class Engine:
    """The truth: what there is and what became of it. ``history`` has every container that ever was."""

    def __init__(self, name: str, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self.name, self.clock, self.wall = name, clock, wall
        self.history: list[Container] = []
        self.up = True
        self.began = clock()
        self.began_wall = to_wire(from_epoch(wall()))
        self.stopping: float | None = None
        self.silent = False
        self.machine_began = clock() - UP_S
        self.fates: deque[str] = deque()
        self._numbers = itertools.count(1)

    def here(self) -> list[Container]:
        return [box for box in self.history if not box.removed]

    def running(self) -> list[Container]:
        return [box for box in self.here() if box.running]

    def find(self, container_id: str) -> Container:
        for box in self.here():
            if box.id == container_id:
                return box
        raise NotThere(404, f"no such container: {container_id}")

    def make(self, plan: ContainerPlan) -> Container:
        box = Container(f"{self.name}-{next(self._numbers):060d}", plan, self.wall())
        self.history.append(box)
        return box

    def end(self, box: Container, code: int, cause: str) -> None:
        """The program of a running container ends."""
        run = box.runs[-1]
        run.ended, run.code, run.cause, run.ended_wall = self.clock(), code, cause, self._date()
        run.told = cause in ("program", "signal")

    def begin(self, box: Container) -> None:
        if not box.running:
            box.runs.append(Run(self.clock(), began_wall=self._date()))

    def signal(self, box: Container, signal: str) -> bool:
        if not box.running:
            return False
        box.runs[-1].signalled = True
        if signal == "SIGKILL":
            self.end(box, KILL, "signal")
        elif "MODEL_STUBBORN" not in box.plan.env:
            self.end(box, int(box.plan.env.get("MODEL_TERM", TERM)), "signal")
        return True

    def go_down(self, cause: str) -> None:
        """It ends what runs, and does not answer any more."""
        self.stopping = self.clock()
        for box in self.running():
            obeys = cause == "engine" and "MODEL_STUBBORN" not in box.plan.env
            code = int(box.plan.env.get("MODEL_TERM", TERM)) if obeys else KILL if cause == "engine" else NOT_SEEN
            self.end(box, code, cause)
        self.up = False

    def come_up(self) -> None:
        for box in self.here():
            for run in box.runs:
                run.told = False
        self.up, self.began, self.began_wall = True, self.clock(), self._date()

    def _date(self) -> str:
        return to_wire(from_epoch(self.wall()))


class ModelDriver:
    """The ``Driver`` protocol over an engine. Each call first takes a fate: good, away (it never came there), lost (it
    was done, and nobody heard), refused. ``passing`` is told before and after each call; it may end the caller."""

    confined = True
    outlives_machine = True

    def __init__(self, engine: Engine, passing: Callable[[], None]) -> None:
        self._engine, self._passing = engine, passing
        self.images = Images()

    def _call(self, work: Callable[[], Any], *, changes: bool = False) -> Any:
        engine = self._engine
        self._passing()
        fate = engine.fates.popleft() if engine.fates else "good"
        if not engine.up or fate == "away":
            raise EngineUnavailable("no answer of the engine in 10 s")
        if fate == "refused" and changes:
            raise EngineRefused(500, "the engine says no")
        done = work()
        if fate == "lost":
            raise EngineUnavailable("the engine's answer was cut")
        self._passing()
        return done

    def engine(self) -> EngineFacts:
        facts = EngineFacts(f"engine-of-{self._engine.name}", "27.0")
        return self._call(lambda: facts)  # type: ignore[no-any-return]

    def wall(self) -> float:
        return self._engine.wall()

    def started_at(self) -> str | None:
        return self._call(lambda: self._engine.began_wall)  # type: ignore[no-any-return]

    def run_times(self) -> RunTimes | None:
        """By the machine's own clock; what was before its start is not known any more."""
        engine = self._engine
        began = engine.began - engine.machine_began
        stopping = None if engine.stopping is None else engine.stopping - engine.machine_began
        return RunTimes(stopping if stopping is not None and stopping > 0 else None, began, began)

    def ended_by_itself(self, container_id: str) -> bool:
        run = self._engine.find(container_id).runs[-1]
        return run.told and not run.signalled

    def was_signalled(self, container_id: str) -> bool | None:
        run = self._engine.find(container_id).runs[-1]
        return run.signalled if run.told else None

    def has_traces(self) -> bool:
        return True

    def list_own(self) -> list[Seen]:
        engine = self._engine
        return self._call(  # type: ignore[no-any-return]
            lambda: [
                Seen(box.id, box.plan.name, box.state, dict(box.plan.labels), box.created) for box in engine.here()
            ]
        )

    def inspect(self, container_id: str) -> Facts:
        return self._call(lambda: self._facts(self._engine.find(container_id)))  # type: ignore[no-any-return]

    def create(self, plan: ContainerPlan, spare_name: str) -> str:
        return self._call(lambda: self._engine.make(plan).id, changes=True)  # type: ignore[no-any-return]

    def start(self, container_id: str) -> None:
        self._call(lambda: self._engine.begin(self._engine.find(container_id)), changes=True)

    def signal(self, container_id: str, signal: str) -> bool:
        engine = self._engine
        return self._call(lambda: engine.signal(engine.find(container_id), signal))  # type: ignore[no-any-return]

    def never_restart(self, container_id: str) -> None:
        raise AssertionError("nobody sets a restart policy here")

    def remove(self, container_id: str, force: bool = False) -> None:
        def gone() -> None:
            box = self._engine.find(container_id)
            if box.running and not force:
                raise EngineRefused(409, "cannot remove a running container")
            if box.running:
                self._engine.end(box, KILL, "removed")
            box.removed = True

        try:
            self._call(gone, changes=True)
        except NotThere:
            return

    def missing_program(self, container_id: str) -> str | None:
        return None

    def changed_ns(self, container_id: str, path: str) -> int | None:
        return None

    def log_rest(self, container_id: str, limit_bytes: int, after: str = "", thorough: bool = True) -> LogRest:
        return self._call(lambda: LogRest(b"", 0, True, ""))  # type: ignore[no-any-return]

    def log_follow(self, container_id: str, after: str, on_open: Any) -> Iterator[Any]:
        return iter(())

    def events(self, on_open: Any) -> Iterator[str]:
        return iter(())

    def _facts(self, box: Container) -> Facts:
        run = box.runs[-1] if box.runs else None
        return Facts(
            id=box.id,
            name=box.plan.name,
            state=box.state,
            running=box.running,
            exit_code=0 if run is None or run.code is None else run.code,
            error="",
            oom_killed=False,
            started_at=run.began_wall if run is not None else None,
            finished_at=(run.ended_wall or None) if run is not None else None,
            labels=dict(box.plan.labels),
            cards=tuple(sorted(box.cards)),
        )
