"""Control groups of processes without systemd: one a task, in each hierarchy that the host lets us write."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

ROOT = Path("/sys/fs/cgroup")
PARENT = "heterofleet-tasks"
KINDS = ("", "pids", "memory", "cpu")
"""The one hierarchy of version 2, then those of version 1 that tell members or hold limits."""

_PERIOD_US = 100_000


def make(record_id: str, cpus: Optional[float], memory_mib: Optional[int]) -> list[str]:
    """Folders that the process is to enter, with their limits set as far as the host has the means."""
    made = []
    for kind in KINDS:
        base = ROOT / kind
        if not (base / "cgroup.procs").exists():
            continue
        folder = base / PARENT / record_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if memory_mib is not None:
            limit = str(memory_mib << 20)
            _set(folder, ("memory.max", "memory.limit_in_bytes"), limit)
            _set(folder, ("memory.swap.max",), "0")
        if cpus is not None:
            quota = round(cpus * _PERIOD_US)
            _set(folder, ("cpu.max",), f"{quota} {_PERIOD_US}")
            _set(folder, ("cpu.cfs_quota_us",), str(quota))
        made.append(str(folder))
    return made


def members(record_id: str) -> list[int]:
    """All that came from the process and has not ended."""
    found: set[int] = set()
    for kind in KINDS:
        try:
            found |= {int(line) for line in (ROOT / kind / PARENT / record_id / "cgroup.procs").read_text().split()}
        except OSError:
            continue
    return sorted(found)


def remove(record_id: str) -> None:
    """Fine when there is none; one that still has members stays."""
    for kind in KINDS:
        try:
            (ROOT / kind / PARENT / record_id).rmdir()
        except OSError:
            continue


def _set(folder: Path, names: tuple[str, ...], value: str) -> None:
    for name in names:
        try:
            (folder / name).write_text(value)
        except OSError:
            continue
