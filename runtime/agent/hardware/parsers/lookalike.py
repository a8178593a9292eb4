"""Tables in the shape of nvidia-smi's, as several vendors' tools print them: a header of two or three lines, and below
it as many lines for each card, the first of which holds its number, name and PCI address.

A cell is found by the label that stands in its place in the header; what is in it, by its form. Text above, below and
between is passed over; each header begins a new sample, and the last one counts. The last cell of a row without its
closing bar was cut off and is not believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.reading import CardReading, Reading
from runtime.agent.hardware.values import number, word

BUS = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b")
_CARD = re.compile(r"(?P<index>\d{1,9})\s+(?P<name>\S.*?)(?:\s+(?:On|Off|N/?A|ERR!))?")
_DRIVER = re.compile(r"Driver Ver(?:sion)?\s*:\s*(\d[\w.]*)", re.IGNORECASE)
_FREE = r"(?<![\w.,:])(?<!:\d\d )"
"""No digit before, and not the year behind a time of day."""
_TEMPERATURE = re.compile(rf"{_FREE}(\d+(?:\.\d+)?)\s*(?:°?C|℃)(?!\w)")
_WATTS = r"\d+(?:\.\d+)?(?:\s*W)?"
_WATTS_SURE = r"\d+(?:\.\d+)?\s*W"
_POWER = re.compile(rf"{_FREE}(?:(?P<draw>{_WATTS_SURE})|[^\s/]\S*)\s*/\s*(?P<cap>\[?N/?A\]?|{_WATTS})\s*$")
"""A draw that is no number of watts (``ERR!``, a date) leaves the limit what it is."""
_BARE_POWER = re.compile(rf"{_FREE}(\d+(?:\.\d+)?)\s*W(?!\w)")
_PERCENT = re.compile(rf"{_FREE}(\d+(?:\.\d+)?)\s*%")
_PROCESS = re.compile(
    r"(?P<index>\d{1,9})\s+(?:(?:\d{1,9}|N/A)\s+(?:\d{1,9}|N/A)\s+)?(?P<pid>\d{1,9})\s+(?:[A-Z](?:\+[A-Z])*\s+)?"
    r"(?P<name>\S.*?)\s+(?<!:\d\d\s)(?P<memory>\d+\s*(?:[KMG]iB)?|N/A)"
)
_NO_PROCESS = re.compile(r"no (?:running )?process(?:es)? found", re.IGNORECASE)

Place = tuple[int, int]
"""(line of a card, cell in that line), from 0."""


@dataclass(frozen=True)
class Card:
    """One card's lines; ``name`` without the mode that may stand behind it, ``bus_id`` as printed."""

    index: int
    name: str
    bus_id: str
    _lines: list[list[str]]
    _places: Mapping[str, Place]

    def cell(self, key: str) -> str:
        """What stands in a column; empty where the table has no such column, or the row ends before it."""
        line, at = self._places.get(key, (-1, 0))
        return self._lines[line][at] if 0 <= line < len(self._lines) and at < len(self._lines[line]) else ""

    def sensors(self) -> tuple[Optional[float], Optional[float], Optional[float]]:
        """(°C, W, W at most) of the cell ``sensors``, such as ``N/A  38C  P0  85W / 400W`` or ``39 C  105W  300W``;
        a limit may have lost its unit to a value that was too wide."""
        cell = self.cell("sensors")
        heat, power = _TEMPERATURE.search(cell), _POWER.search(cell)
        bare = [float(watts) for watts in _BARE_POWER.findall(cell)]
        temperature = None if heat is None else float(heat.group(1))
        if power is not None:
            return temperature, number(word(power["draw"])), number(word(power["cap"]))
        return temperature, bare[0] if bare else None, bare[1] if len(bare) > 1 else None

    def load(self) -> Optional[float]:
        """The percentage that begins the cell ``load``."""
        match = _PERCENT.match(self.cell("load"))
        return None if match is None else float(match.group(1))

    def reading(self, **told: Any) -> CardReading:
        """The card with its sensors, its load, and its memory where the cell ``memory`` is ``used / total``; ``told``
        is what the tool tells beside that, or otherwise."""
        used, total = tables.used_total_mib(self.cell("memory"))
        temperature, power, limit = self.sensors()
        values = {
            "index": self.index,
            "name": self.name,
            "bus_id": self.bus_id,
            "memory_total_mib": total,
            "memory_used_mib": used,
            "utilization_pct": self.load(),
            "temperature_c": temperature,
            "power_w": power,
            "power_limit_w": limit,
            "name_cut": self.name.endswith("..."),
        }
        return CardReading(**{**values, **told})


@dataclass
class Table:
    """The last sample in a text. ``cards`` by their number; ``processes`` None: the text has no such table."""

    driver_version: Optional[str] = None
    headed: bool = False
    cards: dict[int, Card] = field(default_factory=dict)
    processes: Optional[list[dict[str, Any]]] = None

    def reading(self, cards: list[CardReading]) -> Reading:
        return Reading(cards, len(cards) or None, driver_version=self.driver_version, processes=self.processes)


def read(text: str, labels: Mapping[str, str], unheaded: Mapping[str, Place]) -> Table:
    """``labels``: key -> the words of its column's header, in small letters, several with ``|`` between; ``bus`` is
    the one that tells a header. ``unheaded``: where the cells lie in a piece of a table without a header."""
    reader = _Reader(labels, unheaded)
    before = None
    for line in tables.lines(text):
        if line == before and line:
            continue
        before = line
        reader.line(line)
    return reader.table


class _Reader:
    def __init__(self, labels: Mapping[str, str], unheaded: Mapping[str, Place]) -> None:
        self.table = Table()
        self._labels = {"name": "name", **labels}
        self._places: dict[str, Place] = dict(unheaded)
        self._header: Optional[int] = None
        self._card: Optional[list[list[str]]] = None
        self._in_processes = False

    def line(self, line: str) -> None:
        cells = tables.cells(line)
        driver = _DRIVER.search(line)
        if driver is not None:
            self.table.driver_version = driver.group(1)
        if cells is None:
            self._header = None
            return
        if not line.endswith("|"):
            cells = cells[:-1]
        if not cells:
            return
        if any(cell.lower().startswith(self._labels["bus"]) for cell in cells):
            self._begin()
        if self._header is not None:
            self._column_names(cells, self._header)
            self._header += 1
        elif cells[0].startswith("Process") and not BUS.search(line):
            self._in_processes, self._card = True, None
        elif self._in_processes:
            self._process(cells)
        else:
            self._row(cells)

    def _begin(self) -> None:
        """A header: another sample of the tool begins here."""
        self.table = Table(self.table.driver_version, headed=True)
        self._places, self._header, self._card, self._in_processes = {}, 0, None, False

    def _column_names(self, cells: list[str], line: int) -> None:
        for at, cell in enumerate(cells):
            for key, words in self._labels.items():
                if any(word in cell.lower() for word in words.split("|")):
                    self._places.setdefault(key, (line, at))

    def _row(self, cells: list[str]) -> None:
        (_, at), (line, bus_at) = self._places.get("name", (0, 0)), self._places.get("bus", (0, 1))
        start = _CARD.fullmatch(cells[at]) if at < len(cells) else None
        bus = BUS.search(cells[bus_at]) if line == 0 and bus_at < len(cells) else None
        if start is not None and bus is not None:
            self._card = [cells]
            index = int(start["index"])
            self.table.cards[index] = Card(index, start["name"], bus.group(), self._card, self._places)
        elif self._card is not None:
            self._card.append(cells)

    def _process(self, cells: list[str]) -> None:
        row = " ".join(cells)
        # An empty cell stands where two rows were joined into one line.
        match = _PROCESS.fullmatch(row) if "" not in cells else None
        if _NO_PROCESS.search(row):
            self.table.processes = self.table.processes or []
        elif match is not None:
            entry: dict[str, Any] = {"index": int(match["index"]), "pid": int(match["pid"]), "name": match["name"]}
            entry["memory_mib"] = tables.amount_mib(match["memory"])
            self.table.processes = [*(self.table.processes or []), entry]
