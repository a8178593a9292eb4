"""CPU and memory of processes as the kernel counts them, and figures with their spread."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def text(self, unit: str, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} {unit} ({self.low:.{digits}f} to {self.high:.{digits}f})"


@dataclass(frozen=True)
class Figure:
    """One line of the result: what was measured, what it was, the budget, and whether it is kept."""

    what: str
    seen: str
    budget: str
    kept: bool


def cpu_seconds(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def cpu_seconds_fine(pids: Iterable[int]) -> float:
    """CPU time of processes with all threads, by the scheduler's own count in nanoseconds."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            total += int(task.read_text().split()[0])
    return total / 1e9


def pss_mib(pids: Iterable[int]) -> float:
    """Proportional set size of processes together, in MiB."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found
