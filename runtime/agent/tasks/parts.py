"""What every part of a task's way works with. Made once, by the executor."""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Optional

from runtime.agent.drivers.driver import EngineFacts
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.pool import Pool
from runtime.agent.tasks.records import Key, Stage
from runtime.agent.tasks.steps import Step, Trace, no_trace
from runtime.agent.tasks.timers import Timers

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Driver
    from runtime.agent.hardware.inventory import GpuSnapshot
    from runtime.agent.link.client import ServerClient
    from runtime.agent.link.identity import Identity
    from runtime.agent.settings import AgentSettings
    from runtime.agent.tasks.journal import Journal


@dataclass
class Parts:
    """Shared by the steps. ``engine`` is the engine's last known self-description."""

    settings: AgentSettings
    client: ServerClient
    driver: Driver
    journal: Journal
    identity: Identity
    snapshot: Callable[[], GpuSnapshot]
    steps: Pool
    pulls: Pool
    reports: Pool
    probes: Pool
    timers: Timers
    boot: str
    trace: Trace = no_trace
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    stop_event: threading.Event = field(default_factory=threading.Event)
    engine: EngineFacts = field(default_factory=lambda: EngineFacts(None, None))

    def step(self, held: Held, step: Step) -> None:
        """Announce a step that is about to be taken."""
        self.trace(held.key.uid, held.key.attempt, step)

    def write(self, held: Held, **changes: Any) -> None:
        """Change a claim's record; on disk when this returns."""
        record = dataclasses.replace(held.record, **changes)
        self.journal.save(record)
        held.record = record


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
