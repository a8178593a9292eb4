"""Xid lines of NVIDIA's kernel module: what a card's driver wrote into the kernel log about it.

Form (NVIDIA, "Xid Errors"): ``NVRM: Xid (PCI:0000:4c:00): 79, pid=1234, name=python, GPU has fallen off the bus.``
Most codes speak of the program that ran there, not of the card; only :data:`OFF_THE_BUS` condemns it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Callable, Optional

from runtime.agent.hardware.pci import normal_bus_id

OFF_THE_BUS = 79
HOLD_COLLECTIONS = 4
"""So many collections a card stays condemned by one line: long enough for the server's three beats. One that answers
well after it comes back by its good beats, one that does not is named by NVML itself."""

OF_THE_PROGRAM = frozenset((13, 31, 43, 45, 68, 69))
"""Codes of faults in what a program asked of the card, or of its end: nothing to tell of the card."""

TEXT_LIMIT = 160

_LINE = re.compile(
    r"NVRM:\s+Xid\s+\((?:PCI:)?(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?)\)\s*:\s*"
    r"(?P<code>\d{1,4})\b[,\s]*(?P<text>.*)"
)


@dataclass(frozen=True)
class Xid:
    """One line: the card's bus id in the normal form, the code, what follows."""

    bus_id: str
    code: int
    text: str = ""


def parse_xid(line: str) -> Optional[Xid]:
    """None for every line that is no Xid."""
    match = _LINE.search(line)
    if match is None:
        return None
    bus_id = match["bus"] if "." in match["bus"] else match["bus"] + ".0"
    normal = normal_bus_id(bus_id)
    return None if normal is None else Xid(normal, int(match["code"]), match["text"].strip()[:TEXT_LIMIT])


class XidWatch:
    """The kernel's lines since the last collection, and what they mean for cards.

    ``read``: new lines of the kernel log; its first answer is history: it is told, and condemns nobody.
    """

    def __init__(self, read: Callable[[], Iterable[str]]) -> None:
        self._read = read
        self._begun = False
        self._condemned: dict[str, int] = {}
        self._last: dict[str, Xid] = {}

    def look(self) -> None:
        """Once a collection."""
        self._condemned = {bus_id: left - 1 for bus_id, left in self._condemned.items() if left > 1}
        for line in self._read():
            xid = parse_xid(line)
            if xid is None:
                continue
            if xid.code not in OF_THE_PROGRAM:
                self._last[xid.bus_id] = xid
            if xid.code == OFF_THE_BUS and self._begun:
                self._condemned[xid.bus_id] = HOLD_COLLECTIONS
        self._begun = True

    def condemned(self) -> dict[str, str]:
        """Bus id -> why."""
        return dict.fromkeys(self._condemned, "Xid 79: the GPU has fallen off the bus")

    def notes(self) -> dict[str, str]:
        """Bus id -> the last line that speaks of the card itself, since the machine's start."""
        return {bus_id: f"Xid {xid.code}: {xid.text}".rstrip(": ") for bus_id, xid in self._last.items()}
