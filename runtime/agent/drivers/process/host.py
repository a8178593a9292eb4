"""What runs processes on this host: systemd, or a supervisor of ours where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Protocol

from runtime.agent.drivers.process.records import Record


@dataclass(frozen=True)
class Live:
    """A process that is there. ``pid``: its program's, 0 when only what the program left is being ended."""

    pid: int


class Host(Protocol):
    """Every call has a deadline and raises DriverError."""

    @property
    def confined(self) -> bool:
        """Whether its processes are kept from what they were not given."""
        ...

    def version(self) -> str: ...
    def live(self, records: Sequence[Record]) -> dict[str, Live]:
        """Those of ``records`` that are there now, by id; with one call, however many they are."""
        ...

    def taken(self, unit: str) -> bool:
        """Whether something of that name is there already."""
        ...

    def start(self, record: Record) -> None:
        """Its files are in place. EngineRefused when it could not be started."""
        ...

    def signal(self, record: Record, signal: str) -> bool:
        """To the program; SIGKILL to all that came from it. False: it reached nobody."""
        ...

    def clear(self, record: Record) -> None:
        """It is gone: take away what the host still holds of it."""
        ...

    def file_changed_ns(self, path: str) -> Optional[int]:
        """When ``path`` was last changed, as the host sees it; None when it sees nothing there."""
        ...
