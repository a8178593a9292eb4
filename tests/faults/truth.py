"""Whether an end that the server shows can be true, given what the container itself did. One table. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

UNSTARTED = frozenset(
    {
        "image_invalid", "image_not_found", "image_no_platform", "registry_auth_failed", "image_pull_failed",
        "pull_timeout", "volume_rejected", "env_invalid", "profile_rejected", "disk_full", "shm_too_small",
        "port_in_use", "gpu_unavailable", "engine_unavailable", "name_conflict", "start_failed", "never_started",
    }
)  # fmt: skip
"""Reasons that say: the program never ran."""
FROM_OUTSIDE = frozenset({"lost_container", "engine_restarted", "host_restarted", "node_lost", "end_unknown"})
"""Reasons that something other than the program brought about: only a scenario's own faults explain them."""
BY_OUR_HAND = frozenset({"stopped_by_operator", "timeout", "health_failed", "start_timeout"})
TIMEOUT_CODE = 124


@dataclass(frozen=True)
class Start:
    """One start of one container. ``said``: the exit code in its own end line. ``died``: the engine's word. ``attempt``
    is None where nobody can tell. Times in seconds of the machine's uptime."""

    node: str
    box: str
    born: str
    at: float
    attempt: int | None = None
    said: int | None = None
    died: int | None = None
    alive: bool = False
    over_at: float = 0.0


def end_fault(
    status: str | None, reason: str | None, code: int | None, start: Start | None, excused: Collection[str] = ()
) -> str | None:
    """What is wrong with an end, None when it can be true.

    ``status`` is None for an attempt that another one followed. ``start``: its program's start, None: it never ran.
    """
    if start is not None and start.alive:
        return f"is over ({reason}), and its program runs"
    if status == "completed":
        if start is None:
            return "completed, and it never started"
        if start.said is None:
            return "completed, and its program wrote no end"
        return None if code == 0 == start.said else f"completed with {code}, and its program ended with {start.said}"
    if status == "cancelled" or reason in UNSTARTED:
        return None if start is None else f"{reason or status} says that it never ran, and it did"
    if reason in FROM_OUTSIDE:
        if reason in excused:
            return None
        did = "never started" if start is None else f"ended with {start.said if start.said is not None else start.died}"
        return f"{reason}, which nothing in this scenario explains: it {did}"
    if reason == "stopped_by_operator" and start is None:
        return None if code is None else f"was stopped before its start, with exit code {code}"
    if start is None:
        return f"{reason}, and it never started"
    if reason == "timeout":
        return None if code == TIMEOUT_CODE else f"timeout with exit code {code}, wanted {TIMEOUT_CODE}"
    known = {own for own in (start.said, start.died) if own is not None}
    if reason in BY_OUR_HAND and code is None and excused:
        return None  # engine or machine went down before anybody heard the code
    if reason in BY_OUR_HAND:  # a grace that ran out may end a program in the middle of its last words
        return None if code in known or (not known and code is not None) else _differs(code, known)
    if reason == "exited" and start.said is None and start.died is None:
        return f"exited with {code}, and neither program nor engine know of an end"
    if start.died is not None:
        return None if code == start.died and start.said in (None, code) else _differs(code, known)
    return None if start.said in (None, code) else _differs(code, known)


def _differs(code: int | None, known: Collection[int]) -> str:
    return f"exit code {code}, and the container ended with {' or '.join(str(own) for own in sorted(known)) or 'none'}"
