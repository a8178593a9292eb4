"""What a vendor's tool said, word for word: the outcome of every parser of cards.

A parser is a pure function from text to a :class:`Reading`. It finds its columns by their headers and its values by
separators and keys, never by positions or numbers of rows, and says only what the text says: what is unreadable or
absent is None. What a reading means for this node (the class of a card, its NUMA node, whether it is lost) is for the
vendor's detector.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Optional

OK, WARNING, BAD = "ok", "warning", "bad"
"""Verdicts on a card's health."""


@dataclass(frozen=True)
class CardReading:
    """One card, or one of several devices on a card, as the tool lists it.

    ``index`` is the tool's own number, never the row's. ``name`` and ``bus_id`` are as printed; ``name_cut``: the
    tool shortened the name. ``uuid`` or ``serial`` only when printed. ``health`` is :data:`OK`, :data:`WARNING`,
    :data:`BAD`, or None when the text gives no verdict; ``health_raw`` has its words. ``failure``: what condemns the
    card, in the tool's words (the rules of a card failure, not every bad value). ``more``: what only this tool tells
    (``npu_id``, ``chip_id``, ``mig_mode``, ...), in plain JSON.
    """

    index: Optional[int] = None
    name: Optional[str] = None
    uuid: Optional[str] = None
    serial: Optional[str] = None
    bus_id: Optional[str] = None
    memory_total_mib: Optional[int] = None
    memory_used_mib: Optional[int] = None
    utilization_pct: Optional[float] = None
    temperature_c: Optional[float] = None
    power_w: Optional[float] = None
    power_limit_w: Optional[float] = None
    health: Optional[str] = None
    health_raw: Optional[str] = None
    failure: Optional[str] = None
    name_cut: bool = False
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Blame:
    """The card that an error names; both None: the error names none, so it condemns none. ``bus_id`` as printed;
    ``profile_id``: the kind of slice that could not be made on it."""

    index: Optional[int] = None
    bus_id: Optional[str] = None
    profile_id: Optional[int] = None


@dataclass(frozen=True)
class Complaint:
    """An error in the tool's own words. ``kind``: ``driver_not_loaded``, ``version_mismatch``, ``nvml_unknown``,
    ``no_devices``, ``gpu_lost``, ``device_handle``, ``reset_required``, ``os_blocked``, ``in_use``,
    ``insufficient_resources``, ``not_initialized``, ``device_used``, ``tool_missing``, or None."""

    text: str
    kind: Optional[str] = None
    blamed: tuple[Blame, ...] = ()


@dataclass(frozen=True)
class Reading:
    """One output of one tool.

    ``devices``: how many the text shows; None when it does not say (an error is not "none"). ``errors`` stand beside
    the cards that did answer. ``processes``: None when the text has no such section, [] when it says there are none;
    each ``{"index"?, "bus_id"?, "uuid"?, "pid", "name", "memory_mib"}``. ``more``: facts of the tool as a whole, in
    plain JSON (``cuda_version``, ``attached_reported``, ``mig``, ...).
    """

    cards: list[CardReading] = field(default_factory=list)
    devices: Optional[int] = None
    errors: list[Complaint] = field(default_factory=list)
    driver_version: Optional[str] = None
    processes: Optional[list[dict[str, Any]]] = None
    more: dict[str, Any] = field(default_factory=dict)


Parser = Callable[[list[str], str], Reading]
"""(arguments that the tool was given, its output) -> what it says. Raises nothing: text that is no output of the tool
gives a reading without cards, whose ``devices`` is None."""
