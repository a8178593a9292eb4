"""Whether there is room for a task where the engine keeps its images and containers: bytes and inodes.

A file system is full as soon as one of the two is gone. What cannot be looked at is unknown: neither full nor free.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from runtime.agent.deadline import Late, within
from runtime.agent.hardware.space import space_of

LOOK_S = 4.0
PULL_INODES = 10_000
"""An image is unpacked into many thousands of files."""

WORK_MIB = 64
WORK_INODES = 100
"""Below these nothing that is begun can be relied on to be finished: no container is made, no pull goes on. A node
whose ``disk_min_free_mib`` is lower goes as low as that."""


@dataclass(frozen=True)
class Room:
    """What is free at ``path``. ``free_inodes`` None: the file system does not count them."""

    path: str
    free_mib: int
    free_inodes: Optional[int] = None


def look(path: Optional[str]) -> Optional[Room]:
    """None: it is not known (no path, nothing there, a file system that does not answer)."""
    if not path:
        return None
    try:
        found = within(LOOK_S, lambda: os.statvfs(path))
    except (OSError, Late):
        return None
    space = space_of(found)
    return Room(path, space.free_mib, space.free_inodes)


def shortage(room: Optional[Room], least_mib: int, least_inodes: int) -> Optional[str]:
    """What is missing, in words with numbers; None when there is enough, or nobody knows."""
    if room is None:
        return None
    missing = []
    if room.free_mib < least_mib:
        missing.append(f"{room.free_mib} MiB free, {least_mib} MiB are wanted (disk_min_free_mib)")
    if room.free_inodes is not None and room.free_inodes < least_inodes:
        missing.append(f"{room.free_inodes} inodes free, {least_inodes} are wanted, however many bytes are left")
    return f"{room.path} has {' and '.join(missing)}" if missing else None


def before_pull(path: Optional[str], disk_min_free_mib: int) -> Optional[str]:
    """Why no pull may begin, None when one may."""
    return shortage(look(path), disk_min_free_mib, PULL_INODES)


def to_work(path: Optional[str], disk_min_free_mib: int) -> Optional[str]:
    """Why no container is made and no pull goes on, None when all is well."""
    return shortage(look(path), min(disk_min_free_mib, WORK_MIB), WORK_INODES)
