"""``npu-smi info``: two lines a chip, and a table of processes below.

The first line of a chip has the card (NPU), its name and health; the second the chip, its bus id and its memory. With
a column of HBM that is the device's memory, and Memory-Usage is the DDR on the card; without it Memory-Usage is it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Optional

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.pci import printed_bus_id
from runtime.agent.hardware.reading import BAD, OK, WARNING, CardReading, Reading
from runtime.agent.hardware.values import number, ordinal, word

HEALTH = {"ok": OK, "warning": WARNING, "alarm": BAD, "critical": BAD}
"""Huawei's words for a chip's health; UNKNOWN is no verdict."""

_VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:", re.IGNORECASE)
_TITLE = re.compile(r"[A-Za-z][\w-]*\([^)]*\)")
_VALUE = re.compile(r"[^\s/]+\s*/\s*[^\s/]+|\S+")
_NO_PROCESSES = "No running processes"


def verdict(words: Optional[str]) -> Optional[str]:
    return HEALTH.get((words or "").strip().lower())


@dataclass
class _Table:
    """What has been read so far. ``first``: the upper line of a chip whose lower one has not come yet."""

    titles: dict[str, list[str]] = field(default_factory=dict)
    numbered: bool = False
    first: Optional[list[str]] = None
    cards: list[CardReading] = field(default_factory=list)
    processes: Optional[list[dict[str, Any]]] = None
    columns: list[str] = field(default_factory=list)
    """Of the table of processes; empty above it."""


def parse_table(lines: list[str]) -> Reading:
    table, version = _Table(), None
    for line in lines:
        row = tables.cells(line)
        if not row:
            continue
        found = _VERSION.search(row[0])
        if found is not None:
            # The tool was asked again and again: what it said last counts.
            table, version = _Table(), found[1]
        else:
            _take(table, row)
    if version is None and not table.cards:
        return Reading()
    devices = len(table.cards) if table.cards or table.titles else None
    return Reading(table.cards, devices, processes=table.processes, more={"npu_smi_version": version})


def _take(table: _Table, row: list[str]) -> None:
    head = row[0].split()
    if not head:
        return
    if row[0].startswith(_NO_PROCESSES):
        table.processes = table.processes or []
    elif any(cell.lower().startswith("process") for cell in row[1:]):
        table.columns = [cell.lower() for cell in row]
        table.processes = table.processes or []
    elif table.columns:
        _take_process(table, row)
    elif head[0] in ("NPU", "Chip") and len(row) > 2:
        table.titles[head[0]] = _TITLE.findall(" ".join(row[2:]))
        table.numbered = table.numbered or (head[0] == "Chip" and len(head) > 1)
    elif len(row) > 2 and ordinal(head[0]) is not None:
        if len(head) > 1 and not _is_place(row[1]):
            table.first = row
        elif table.first is not None:
            card = _card(table, table.first, row)
            # A line that came twice is one chip all the same.
            table.cards = [each for each in table.cards if _chip(each) != _chip(card)] + [card]
            table.first = None


def _is_place(cell: str) -> bool:
    """Whether the middle cell is a chip's bus id and not a card's health."""
    return printed_bus_id(cell) is not None or cell in ("NA", "N/A", "-", "")


def _chip(card: CardReading) -> tuple[Any, Any]:
    return card.more["npu_id"], card.more["chip_id"]


def _card(table: _Table, first: list[str], second: list[str]) -> CardReading:
    npu, name = first[0].split(None, 1)
    chip = second[0].split()
    upper = _values(table.titles.get("NPU", []), first)
    lower = _values(table.titles.get("Chip", []), second)
    memory, hbm = lower.get("memory-usage"), lower.get("hbm-usage")
    used, total = _pair(hbm if hbm is not None else memory)
    more: dict[str, Any] = {"npu_id": ordinal(npu), "chip_id": ordinal(chip[0])}
    if hbm is not None:
        more["ddr_used_mib"], more["ddr_total_mib"] = _pair(memory)
    device = ordinal(chip[1]) if table.numbered and len(chip) > 1 else None
    if device is not None:
        more["phy_id"] = device
    index = device if device is not None else ordinal(npu)
    raw = word(first[1])
    health = verdict(raw)
    return CardReading(
        index=index,
        name=word(name),
        bus_id=printed_bus_id(second[1]),
        memory_total_mib=total,
        memory_used_mib=used,
        utilization_pct=number(lower.get("aicore")),
        temperature_c=number(upper.get("temp")),
        power_w=number(upper.get("power")),
        health=health,
        health_raw=raw,
        failure=f"health {raw}" if health == BAD else None,
        more=more,
    )


def _values(titles: list[str], row: list[str]) -> dict[str, str]:
    """Title without its unit, in small letters -> value, by their order; nothing where one is missing or there are
    too many, since nobody can tell which."""
    values = _VALUE.findall(" ".join(row[2:]))
    if len(values) != len(titles):
        return {}
    return {title.partition("(")[0].lower(): value for title, value in zip(titles, values)}


def _pair(cell: Optional[str]) -> tuple[Optional[int], Optional[int]]:
    used, total = tables.used_total_mib(cell)
    return (None, None) if total == 0 else (used, total)


def _take_process(table: _Table, row: list[str]) -> None:
    """``npu chip | pid | name | memory``, and whatever a newer tool adds."""
    cells = dict(zip(table.columns, row))
    place = row[0].split()
    pid = ordinal(cells.get("process id"))
    if len(place) < 2 or pid is None or table.processes is None:
        return
    memory = next((cell for title, cell in cells.items() if title.startswith("process memory")), None)
    entry = {"npu_id": ordinal(place[0]), "chip_id": ordinal(place[1]), "pid": pid}
    index = next(
        (c.index for c in table.cards if (c.more["npu_id"], c.more["chip_id"]) == tuple(entry.values())[:2]), None
    )
    table.processes.append(
        {"index": index, **entry, "name": word(cells.get("process name")), "memory_mib": tables.amount_mib(memory)}
    )
