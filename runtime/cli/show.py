"""Values of the API as short text for tables. What is not known is ``-``, never 0."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Optional

from runtime.protocol.times import from_wire, now

UNKNOWN = "-"


def text(value: Any) -> str:
    """Any value; a float without noise digits, a yes or no in words."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(text(item) for item in value) or UNKNOWN
    if isinstance(value, dict):
        return ", ".join(f"{key}={text(item)}" for key, item in value.items()) or UNKNOWN
    return str(value)


def age(moment: Optional[str], since: Optional[datetime] = None) -> str:
    """How long ago a wire time is, in whole units of the largest that fits (``3m``)."""
    if not moment:
        return UNKNOWN
    try:
        seconds = max(0, int(((since or now()) - from_wire(moment)).total_seconds()))
    except ValueError:
        return moment
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def clock(moment: Optional[str]) -> str:
    """The time of day of a wire time, with its date when that is not today (UTC)."""
    if not moment:
        return UNKNOWN
    try:
        at = from_wire(moment)
    except ValueError:
        return moment
    return at.strftime("%H:%M:%S" if at.date() == now().date() else "%Y-%m-%d %H:%M:%S")


def mib(value: Any) -> str:
    """MiB as GiB where that is shorter."""
    if not isinstance(value, (int, float)):
        return UNKNOWN
    return f"{value / 1024:.0f}G" if value >= 10240 else f"{value / 1024:.1f}G" if value >= 1024 else f"{value:g}M"


def share(used: Any, total: Any, unit: Any = text) -> str:
    """``used/total``; ``-`` where neither is known."""
    return UNKNOWN if used is None and total is None else f"{unit(used)}/{unit(total)}"
