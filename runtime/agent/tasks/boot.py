"""Which run of the machine this is, and how its two clocks stand.

The monotonic clock goes on through restarts of the agent, but not through those of the machine; a mark of the
machine's run beside a monotonic time makes that time readable later. The mark has the start time of process 1
too: where the node is a container of its own, the kernel stays and only that changes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from runtime.agent.hardware.proc import START, stat_of

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Facts

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_mark() -> str:
    """The same text as long as the machine has not restarted; parts that cannot be read are empty."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    first = stat_of(1)
    return f"{boot}/{first[START] if first is not None else ''}"


def running_for(facts: Facts) -> Optional[float]:
    """For how many seconds a running container has run, by its first process and no clock that anybody sets; None
    where that process is not to be seen from here."""
    try:
        if facts.pid <= 0 or facts.id not in Path(f"/proc/{facts.pid}/cgroup").read_text():
            return None  # an engine elsewhere numbers its processes by itself
    except (OSError, ValueError):
        return None
    fields = stat_of(facts.pid)
    if fields is None:
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[START]) / os.sysconf("SC_CLK_TCK"))
