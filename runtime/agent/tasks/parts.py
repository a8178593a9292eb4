"""What every part of a task's way works with. Made once, by the executor."""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Optional

from runtime.agent.tasks.confidential import secrets_of
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.pins import Pins
from runtime.agent.tasks.pool import Pool
from runtime.agent.tasks.records import Key, Stage
from runtime.agent.tasks.steps import Step, Trace, no_trace
from runtime.agent.tasks.timers import Timers
from runtime.protocol.masking import Masker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.agent.drivers.driver import Driver
    from runtime.agent.hardware.inventory import GpuSnapshot
    from runtime.agent.link.client import ServerClient
    from runtime.agent.link.identity import Identity
    from runtime.agent.settings import AgentSettings
    from runtime.agent.tasks.engines import Engine, Engines
    from runtime.agent.tasks.journal import Journal
    from runtime.agent.tasks.volumes import Fence
    from runtime.protocol.tasks import AssignedGpu, TaskSpec

    Route = Callable[[TaskSpec, Sequence[AssignedGpu], Fence], TaskSpec]

REMOVERS = 2


@dataclass
class Parts:
    """Shared by the steps. ``drivers``: what runs tasks here, by name. ``proven``: the server has heard this instance
    often enough since the machine's start to know a copy from it."""

    settings: AgentSettings
    client: ServerClient
    drivers: Engines
    journal: Journal
    identity: Identity
    snapshot: Callable[[], GpuSnapshot]
    steps: Pool
    pulls: Pool
    reports: Pool
    probes: Pool
    timers: Timers
    boot: str
    removals: Pool = field(default_factory=lambda: Pool("removal", REMOVERS))
    pins: Pins = field(default_factory=Pins)
    trace: Trace = no_trace
    proven: bool = True
    masker: Masker = field(default_factory=Masker)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    stop_event: threading.Event = field(default_factory=threading.Event)
    last_words: Callable[[Held], None] = lambda held: None
    route: Optional[Route] = None
    """What makes an image and a program of a task that names a model; None: nothing does."""

    def engine_of(self, held: Held) -> Engine:
        """What runs this claim's task."""
        return self.drivers[held.record.driver]

    def driver_of(self, held: Held) -> Driver:
        """How to reach what runs this claim's task."""
        return self.engine_of(held).driver

    def step(self, held: Held, step: Step) -> None:
        """Announce a step that is about to be taken."""
        self.trace(held.key.uid, held.key.attempt, step)

    def write(self, held: Held, **changes: Any) -> None:
        """Change a claim's record; on disk when this returns."""
        record = dataclasses.replace(held.record, **changes)
        self.journal.save(record)
        held.record = record

    def learn(self, held: Held, spec: TaskSpec) -> None:
        """Keep the full specification in memory, and its secrets out of logs, errors and records."""
        held.secret_spec = spec
        self.masker.add_all(secrets_of(spec), held.name)

    def unlearn(self, held: Held) -> None:
        """The claim is over: its secrets are needed no more."""
        held.secret_spec = None
        self.masker.forget(held.name)

    def masked(self, held: Held, text: str) -> str:
        """What somebody else said of a task (engine, registry), without its secrets; mask before cutting."""
        return self.masker.text_of(held.name, text)


class Claims:
    """The claims that this agent holds, by attempt. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Key, Held] = {}

    def add(self, held: Held) -> bool:
        """False when it was there already."""
        with self._lock:
            if held.key in self._held:
                return False
            self._held[held.key] = held
            return True

    def drop(self, key: Key) -> None:
        with self._lock:
            self._held.pop(key, None)

    def get(self, key: Key) -> Optional[Held]:
        with self._lock:
            return self._held.get(key)

    def all(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def of_uid(self, uid: str) -> list[Held]:
        with self._lock:
            return [held for key, held in self._held.items() if key.uid == uid]

    def used(self) -> int:
        """Claims that count against ``max_tasks``."""
        return sum(1 for held in self.all() if held.record.stage is not Stage.DONE)
