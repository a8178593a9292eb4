"""When systemd began to stop Docker and started it again, where Docker is a unit of systemd.

By the monotonic clock, and kept through restarts of the unit: the one record of a stop that outlives the engine.
Source: ``systemctl show`` (systemd 219 and later), times in microseconds, 0 for never.
"""

from __future__ import annotations

import subprocess
from typing import Optional

from runtime.agent.drivers.driver import RunTimes

UNIT = "docker.service"
ANSWER_S = 5.0
_MOMENTS = ("ActiveExitTimestampMonotonic", "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic")


def unit_times() -> Optional[RunTimes]:
    """None when it does not run as that unit, or systemd does not say."""
    try:
        done = subprocess.run(
            ["systemctl", "show", "--no-pager", "--property", ",".join(("ActiveState", *_MOMENTS)), UNIT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return read_times(done.stdout.decode("utf-8", "replace"))


def read_times(text: str) -> Optional[RunTimes]:
    """What ``systemctl show`` printed. Pure."""
    said = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    numbers = [said.get(name, "") for name in _MOMENTS]
    if said.get("ActiveState") != "active" or not all(number.isdigit() for number in numbers):
        return None
    stopping, began, ready = (int(number) / 1_000_000 for number in numbers)
    if not began or ready < began:
        return None
    return RunTimes(stopping if 0 < stopping <= began else None, began, ready)
