"""How a process ended, from the line that was written at its end. Pure."""

from __future__ import annotations

import signal
from typing import Optional

from runtime.agent.drivers.process.records import End

SIGNAL_BASE = 128

FAILED_STEPS = {
    200: "the working folder could not be entered",
    203: "/bin/sh could not be run",
    205: "a resource limit could not be set",
    206: "the OOM score could not be set",
    208: "its standard input could not be opened",
    209: "its standard output could not be opened",
    212: "the name of its process could not be set",
    216: "its group does not exist or could not be taken on",
    217: "its user does not exist or could not be taken on",
    218: "its capabilities could not be dropped",
    219: "its control group could not be set up",
    222: "its standard error could not be opened",
    224: "a PAM session could not be set up",
    226: "its mount namespace could not be set up (a volume or its place is not there, or the kernel forbids it)",
    227: "privileges could not be given up for good (NoNewPrivileges)",
    228: "system calls could not be limited",
    235: "a file could not be given to its owner",
    237: "the kernel's keyring could not be set up",
    238: "its folder of state could not be made",
}
"""Exit codes by which systemd says that it could not run a program (systemd.exec(5), "Process Exit Codes")."""


def read_end(at: str, line: str, started: bool) -> End:
    """``line``: ``CODE STATUS RESULT OOM``, where CODE and STATUS are systemd's ``$EXIT_CODE`` and ``$EXIT_STATUS``
    (systemd.exec(5)), and OOM counts the kernel's kills for lack of memory. What cannot be read is unknown."""
    words = line.split()
    if len(words) != 4:
        return End(at, None)
    code, status, result, kills = words
    if code == "unmade":
        return End(
            at, None, failed="its volumes could not be mounted, or its user not be taken on; its output says more"
        )
    oom = result == "oom-kill" or (kills.isdigit() and int(kills) > 0)
    if code == "exited" and status.isdigit():
        number = int(status)
        if not started and number in FAILED_STEPS:
            return End(at, None, oom, FAILED_STEPS[number])
        return End(at, number, oom)
    if code in ("killed", "dumped"):
        number_of = _signal(status)
        return End(at, None if number_of is None else SIGNAL_BASE + number_of, oom)
    return End(at, None, oom)


def _signal(name: str) -> Optional[int]:
    if name.isdigit():
        return int(name)
    member = getattr(signal, f"SIG{name}", None)
    if member is not None:
        return int(member)
    for prefix, base in (("RTMIN", signal.SIGRTMIN), ("RTMAX", signal.SIGRTMAX)):
        if name.startswith(prefix):
            offset = name[len(prefix) :] or "0"
            return int(base) + int(offset) if offset.lstrip("+-").isdigit() else None
    return None
