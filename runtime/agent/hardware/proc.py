"""What the kernel says of one process (proc(5)): the fields of ``/proc/PID/stat`` behind the command's name, and what
memory it holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

STATE, SESSION = 0, 3
START = 19
"""In ticks since the machine's start; field 22 of the file, whose first two are left out here."""


def stat_of(pid: int) -> Optional[list[str]]:
    """The fields as text, up to START at least; None when there is no such process, or it cannot be read."""
    try:
        # A command may hold spaces and parentheses: only the last one ends it.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields if len(fields) > START else None


def session_members(session: int) -> list[int]:
    """Process ids of a session, its leader's among them; what has ended and is only not yet reaped is none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = stat_of(int(folder.name))
        if fields is not None and fields[SESSION] == str(session) and fields[STATE] not in ("Z", "X"):
            found.append(int(folder.name))
    return found


def own_bytes(pid: int) -> Optional[int]:
    """Resident memory that a process shares with nobody and no file (``/proc/PID/statm``); None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text("ascii").split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
