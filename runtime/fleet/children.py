"""The processes below this one: whoever ends leaves none behind.

Ansible's workers lead sessions of their own, and ssh's masters outlive the run that made them; ending a process group
reaches neither. This process is therefore made the one that orphans below it fall to, so that all can be found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LOOK_S = 0.02
KILL_S = 20.0


def adopt_orphans() -> None:
    """From now on whatever is orphaned below this process becomes its child."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def below(pid: int) -> list[int]:
    """All processes below ``pid`` that still run, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # The name in brackets may hold anything, so what counts stands behind the last one.
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found, open_ones = [], [pid]
    while open_ones:
        mine = children.get(open_ones.pop(0), [])
        found += mine
        open_ones += mine
    return found


def end(grace_s: float) -> list[int]:
    """Ask every process below this one to end, and after ``grace_s`` end what is left; returns what the kernel does
    not let go of (a process that waits for a dead disk)."""
    _signal(below(os.getpid()), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while below(os.getpid()) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    deadline = time.monotonic() + KILL_S
    while (left := below(os.getpid())) and time.monotonic() < deadline:
        # What is made while we look is found in the next round.
        _signal(left, signal.SIGKILL)
        time.sleep(LOOK_S)
    return left


def reap() -> None:
    """Take the exit codes of adopted processes that have ended. Only when nobody waits for a child of its own."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
