"""Times on the wire: RFC 3339 in UTC with ``Z``, milliseconds."""

from __future__ import annotations

from datetime import datetime, timezone


def to_wire(moment: datetime) -> str:
    """``2026-03-01T12:00:00.000Z``. ``moment`` must know its zone."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_wire(text: str) -> datetime:
    """The moment of an RFC 3339 text; ValueError when it is none or has no zone.

    Fractions may have more digits than Python 3.9 reads (Docker prints nine): they are cut to six.
    """
    head, dot, tail = text.partition(".")
    if dot:
        digits = len(tail) - len(tail.lstrip("0123456789"))
        text = f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"
    moment = datetime.fromisoformat(text.replace("Z", "+00:00").replace("z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment


def now() -> datetime:
    """The wall clock, in UTC. For showing and for the wire; never for measuring how long something took."""
    return datetime.now(timezone.utc)


def from_epoch(seconds: float) -> datetime:
    """The moment of a wall clock's reading (``time.time()``)."""
    return datetime.fromtimestamp(seconds, timezone.utc)
