"""What a file system holds and has left: bytes and inodes. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

MIB = 1 << 20


@dataclass(frozen=True)
class Space:
    """``free_mib`` is what is left for everybody, without root's reserve. ``free_inodes`` None: the file system does
    not count them."""

    total_mib: int
    free_mib: int
    free_inodes: Optional[int]


def space_of(found: os.statvfs_result) -> Space:
    """As statvfs(3) tells it."""
    unit = found.f_frsize
    inodes = found.f_favail if found.f_files else None
    return Space(found.f_blocks * unit // MIB, found.f_bavail * unit // MIB, inodes)
