"""nvidia-smi without arguments: the table of cards, that of MIG devices, that of processes.

Layouts of drivers 430 (two lines a card, no GI and CI) to 610 (``KMD Version``), of WSL2 and of Windows (with
``Driver-Model``). A cell is found by its column's header, a value in it by its form. A row that does not end in a bar
was cut off: its last cell is not believed. Each header of the tool begins a new sample; the last one counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Optional

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.parsers.nvidia_smi import verdicts
from runtime.agent.hardware.reading import CardReading, Reading
from runtime.agent.hardware.values import number, whole, word

_DRIVER = re.compile(r"(?:Driver|KMD) Version\s*:\s*(\d[\w.]*)", re.IGNORECASE)
_CUDA = re.compile(r"CUDA(?: UMD)? Version\s*:\s*(\d[\w.]*)", re.IGNORECASE)
_CARD = re.compile(r"(?P<index>\d{1,9})\s+(?P<name>\S.*?)(?P<mode>\s+(?:On|Off|WDDM|TCC|MCDM|N/A|ERR!))?")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b")
_MEMORY = re.compile(r"\d+\s*[KMGT]iB\s*/\s*\d+\s*[KMGT]iB")
_FREE = r"(?<!\S)(?<!:\d\d\s)"
"""A word begins here, and it is not the year behind a time of day."""
_SLICE = re.compile(r"(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})")
_PROCESS = re.compile(
    r"(?P<gpu>\d{1,9})\s+(?:(?P<gi>\d{1,9}|N/A)\s+(?P<ci>\d{1,9}|N/A)\s+)?(?P<pid>\d{1,9})\s+(?P<type>[A-Z](?:\+[A-Z])*)\s+"
    r"(?P<name>.*?)\s*(?P<memory>(?<![\d:.,])(?<!:\d\d\s)\d+\s*[KMG]iB|N/A|\[?Not Supported\]?|ERR!)?"
)

_LABELS = {
    "bus": "bus-id",
    "ecc": "uncorr. ecc",
    "sensors": "pwr:",
    "fan": "fan",
    "memory": "memory-usage",
    "load": "gpu-util",
    "mig": "mig m.",
}
_PLACES = {"bus": 1, "ecc": 2, "sensors": 0, "fan": 0, "memory": 1, "load": 2, "mig": 2}
"""Which cell of a row has what, where the text begins below the header."""

CARDS, SLICES, PROCESSES = "cards", "slices", "processes"


@dataclass
class _Sample:
    """One print of all tables: what was read so far, and where the reader stands."""

    section: str = CARDS
    places: dict[str, int] = field(default_factory=lambda: dict(_PLACES))
    headed: bool = False
    driver: Optional[str] = None
    cuda: Optional[str] = None
    cards: dict[int, dict[str, Any]] = field(default_factory=dict)
    current: Optional[int] = None
    slices: Optional[dict[tuple[int, int, int], dict[str, Any]]] = None
    slice_places: dict[str, int] = field(default_factory=lambda: {"memory": 1, "sm": 2})
    processes: Optional[dict[tuple[Any, ...], dict[str, Any]]] = None
    below_header: bool = False

    def rule(self, line: str) -> None:
        """A double rule ends a header; a table that ends right below it says that it is empty."""
        if "=" in line:
            self.below_header = True
        elif self.below_header and self.section == PROCESSES and self.processes is None:
            self.processes = {}

    def row(self, line: str, cells: list[str]) -> None:
        """A row of whichever table the reader is in; a title changes to that table."""
        first = cells[0]
        if first.startswith("MIG devices"):
            self.section, self.below_header = SLICES, False
        elif first.startswith("Processes"):
            self.section, self.below_header = PROCESSES, False
        elif self.section == PROCESSES:
            self._process(line)
        elif self.section == SLICES:
            self._slice(cells)
        else:
            self._card(cells)

    def _card(self, cells: list[str]) -> None:
        if not self.cards and self.header(cells):
            return
        place = self._cell(cells, "bus")
        bus = _BUS.search(place)
        start = _CARD.fullmatch(self._cell(cells, "sensors"))
        nowhere = start is not None and start["mode"] is not None and place.startswith("N/A")  # an integrated card
        if start is not None and (bus is not None or nowhere):
            self.current = int(start["index"])
            card = {"name": start["name"], "bus_id": bus and bus.group(), "ecc": self._cell(cells, "ecc"), "fan": None}
            self.cards.setdefault(self.current, {}).update(card)
        elif self.current is not None:
            self._readings(self.cards[self.current], cells)

    def _readings(self, card: dict[str, Any], cells: list[str]) -> None:
        sensors, memory = self._cell(cells, "sensors"), self._cell(cells, "memory")
        slice_row = _SLICE.fullmatch(cells[0]) or cells[0] == ""
        if tables.pair(_power(sensors)) is not None or (_MEMORY.search(memory) and not slice_row):
            card.update(sensors=sensors, fan=self._cell(cells, "fan").split(" ")[0], memory=memory)
            card["load"] = self._cell(cells, "load")
        elif cells[0] == "" and "load" in card:
            card["mig"] = self._cell(cells, "mig")

    def header(self, cells: list[str]) -> bool:
        """Takes versions and the columns' places from a row of headers; False when it is none."""
        found = False
        for at, cell in enumerate(cells):
            driver, cuda = _DRIVER.search(cell), _CUDA.search(cell)
            self.driver = self.driver if driver is None else driver.group(1)
            self.cuda = self.cuda if cuda is None else cuda.group(1)
            for key, label in _LABELS.items():
                if label in cell.lower():
                    self.places[key] = at
                    self.headed = found = True
        return found

    def _cell(self, cells: list[str], key: str) -> str:
        at = self.places[key]
        return cells[at] if at < len(cells) else ""

    def _slice(self, cells: list[str]) -> None:
        if "No MIG devices found" in cells[0]:
            self.slices = self.slices or {}
            return
        if not self.below_header:
            for at, cell in enumerate(cells):
                if "Memory-Usage" in cell:
                    self.slice_places["memory"] = at
                if re.search(r"\bSM\b", cell):
                    self.slice_places["sm"] = at
            return
        ids = _SLICE.fullmatch(cells[0])
        if ids is None:
            return
        gpu, gi, ci, dev = (int(number) for number in ids.groups())
        memory, sm = (
            cells[self.slice_places[key]] if self.slice_places[key] < len(cells) else "" for key in ("memory", "sm")
        )
        used, total = tables.used_total_mib(memory)
        part = {"gpu": gpu, "gi": gi, "ci": ci, "dev": dev, "memory_used_mib": used, "memory_total_mib": total}
        self.slices = self.slices or {}
        self.slices[gpu, gi, ci] = {**part, "sm": whole(sm.split(" ")[0])}

    def _process(self, line: str) -> None:
        row = line.strip().strip("|").strip()
        if row.startswith("No running process"):
            self.processes = self.processes or {}
            return
        match = _PROCESS.fullmatch(row) if self.below_header else None
        if match is None:
            return
        found: dict[str, Any] = {"gpu": int(match["gpu"])}
        for key in ("gi", "ci"):
            if whole(match[key]) is not None:
                found[key] = whole(match[key])
        found["pid"] = int(match["pid"])
        found["name"] = match["name"] or None
        found["memory_mib"] = tables.amount_mib(match["memory"])
        found["type"] = match["type"]
        self.processes = self.processes or {}
        self.processes[found["gpu"], found.get("gi"), found.get("ci"), found["pid"]] = found


def read(lines: list[str]) -> Optional[Reading]:
    """The last sample that shows a card; None when the text has neither the tool's header nor a card's row."""
    samples: list[_Sample] = []
    for line in lines:
        if tables.is_rule(line):
            if samples:
                samples[-1].rule(line)
            continue
        cells = tables.cells(line)
        if not cells:
            continue
        if not line.endswith("|") and not (samples and samples[-1].section == PROCESSES):
            cells = cells[:-1]
        if not samples or any(cell.startswith("NVIDIA-SMI") for cell in cells):
            samples.append(_Sample())
        if any(cell.startswith("NVIDIA-SMI") for cell in cells):
            samples[-1].headed = True
            samples[-1].header(cells)
        elif cells:
            samples[-1].row(line, cells)
    shown = [sample for sample in samples if sample.cards] or [sample for sample in samples if sample.headed]
    return _reading(shown[-1]) if shown else None


def _reading(sample: _Sample) -> Reading:
    cards = [_card(index, raw) for index, raw in sample.cards.items()]
    more: dict[str, Any] = {}
    if sample.cuda is not None:
        more["cuda_version"] = sample.cuda
    if sample.slices is not None:
        more["mig_devices"] = list(sample.slices.values())
        more.update(verdicts.mig_memory(more["mig_devices"]))
    pending = [card.index for card in cards if str(card.more.get("mig_mode")).endswith("*")]
    if pending:
        more["mig_pending"] = pending
    if any(card.name_cut for card in cards):
        more["name_truncated"] = True
    processes = None if sample.processes is None else list(sample.processes.values())
    return Reading(cards, len(cards) or None, [], sample.driver, processes, more)


def _card(index: int, raw: dict[str, Any]) -> CardReading:
    memory = raw.get("memory", "")
    used, total = tables.used_total_mib(memory)
    power = tables.pair(_power(raw.get("sensors", "")))
    temperature = re.search(rf"{_FREE}\d+\s?°?C(?!\S)", raw.get("sensors", ""))
    load = re.split(r"\s{2,}", raw.get("load", ""))
    busy = next((cell for cell in load if cell.endswith("%")), None)
    mode = load[-1] if len(load) > 1 else None
    verdict = verdicts.verdict(raw["name"], None, ())
    more: dict[str, Any] = {"fan_pct": number(raw["fan"]) if "fan" in raw and "%" in str(raw["fan"]) else None}
    if whole(raw["ecc"]) is not None:
        more["ecc_uncorrectable"] = whole(raw["ecc"])
    if "mig" in raw:
        more["mig_mode"] = verdicts.mig_mode(raw["mig"])
    if word(mode) is not None:
        more["compute_mode"] = word(mode)
    if memory == "Not Supported":
        more["memory_unified"] = True  # it has no memory of its own to tell of
    name = word(raw["name"])
    return CardReading(
        index=index,
        name=name,
        bus_id=raw["bus_id"],
        memory_total_mib=total,
        memory_used_mib=used,
        utilization_pct=number(busy),
        temperature_c=None if temperature is None else number(temperature.group()),
        power_w=None if power is None else number(power[0]),
        power_limit_w=None if power is None else number(power[1]),
        health=verdict.health,
        health_raw=verdict.raw,
        failure=verdict.failure,
        name_cut=name is not None and name.endswith("..."),
        more=more,
    )


def _power(sensors: str) -> str:
    """``432W / 700W`` out of a cell with fan, temperature and state before it; either side may be no number."""
    match = re.search(rf"{_FREE}(?:\d+\s?W|N/A|ERR!)\s*/\s*(?:\d+\s?W|N/A|ERR!)$", sensors)
    return "" if match is None else match.group()
