"""Which run of the machine this is, and how its two clocks stand.

The monotonic clock goes on through restarts of the agent, but not through those of the machine; a mark of the
machine's run beside a monotonic time makes that time readable later. The mark has the start time of process 1
too: where the node is a container of its own, the kernel stays and only that changes.
"""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FIRST_PROCESS = Path("/proc/1/stat")
_START_FIELD = 19  # starttime is field 22; 19 behind the command's closing parenthesis


def boot_mark() -> str:
    """The same text as long as the machine has not restarted; parts that cannot be read are empty."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    try:
        started = _FIRST_PROCESS.read_text().rpartition(")")[2].split()[_START_FIELD]
    except (OSError, IndexError):
        started = ""
    return f"{boot}/{started}"
