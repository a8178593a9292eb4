"""Enflame's ``efsmi``: the table, ``-q`` (blocks ``DEV ID n`` of sections), ``-L``.

The table's memory is the total alone, and its ``DUsed`` is how busy the card is. ``Total Size`` stands under several
sections of ``-q``, and drivers rename keys: a value is taken by its section. SR-IOV functions share one serial number.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import lookalike, tables, tree
from runtime.agent.hardware.reading import BAD, OK, CardReading, Reading
from runtime.agent.hardware.values import measured, ordinal, word

_HEADING = re.compile(r"DEV ID (\d{1,9})")
_LABELS = {
    "bus": "bus-id",
    "ecc": "ecc",
    "sensors": "pwr(|pwr:|power",
    "memory": "gcu virt",
    "load": "dused",
    "serial": "sn",
}
_UNHEADED = {"bus": (0, 2), "ecc": (0, 2), "sensors": (1, 0), "memory": (1, 1), "load": (1, 2), "serial": (1, 2)}
_MEMORY = re.compile(r"(?P<total>\d+\s*[KMGT]iB)(?:\s+(?P<virt>\w+))?")
_SERIAL = re.compile(r".*%\s+(\w+)")
_HEALTH = {"true": OK, "false": BAD}


def parse(arguments: list[str], text: str) -> Reading:
    """Cards of the table, the blocks or the list; the text itself tells which it is."""
    lines = tables.undoubled(text)
    return _blocks(lines) or _listing(lines) or _table(text)


def _table(text: str) -> Reading:
    table = lookalike.read(text, _LABELS, _UNHEADED)
    cards = []
    for card in table.cards.values():
        memory, serial = _MEMORY.fullmatch(card.cell("memory")), _SERIAL.fullmatch(card.cell("serial"))
        told = {"ecc": word(lookalike.BUS.sub("", card.cell("ecc"))), "virt": memory and memory["virt"]}
        cards.append(
            card.reading(
                serial=None if serial is None else serial.group(1),
                memory_total_mib=None if memory is None else tables.amount_mib(memory["total"]),
                memory_used_mib=None,
                more={key: value for key, value in told.items() if value},
            )
        )
    return table.reading(cards)


def _blocks(lines: list[str]) -> Optional[Reading]:
    root = tree.from_keys(lines, _HEADING)
    cards: dict[int, CardReading] = {}
    driver = None
    for node in root.all("gpu"):
        index = ordinal(node.value)
        if index is None:  # some other line that begins with the word
            continue
        cards[index] = _card(index, node)
        driver = word(node.text("driver_info", "ver")) or driver
    return Reading(list(cards.values()), len(cards), driver_version=driver) if cards else None


def _card(index: int, node: tree.Node) -> CardReading:
    raw, ecc = word(node.text("device_info", "health")), word(node.text("ecc_mode", "current"))
    health = _HEALTH.get((raw or "").lower())
    more: dict[str, Any] = {} if ecc is None else {"ecc": ecc}
    return CardReading(
        index=index,
        name=word(node.text("device_info", "dev_name")),
        uuid=word(node.text("device_info", "dev_uuid")),
        serial=word(node.text("device_info", "dev_sn")),
        bus_id=_bus_id(node.at("pcie_info")),
        memory_total_mib=_memory(node.text("device_mem_info", "total_size|mem_size")),
        memory_used_mib=_memory(node.text("device_mem_info", "used_size|mem_usage")),
        utilization_pct=measured(node.text("device_usage_info", "gcu_usage"), "%"),
        temperature_c=measured(node.text("temperature_info", "gcu_temp"), "C", "℃"),
        power_w=measured(node.text("power_info", "cur_power"), "W"),
        power_limit_w=measured(node.text("power_info", "power_capa"), "W"),
        health=health,
        health_raw=None if raw is None else f"Health : {raw}",
        failure=f"Health : {raw}" if health == BAD else None,
        more=more,
    )


def _bus_id(node: Optional[tree.Node]) -> Optional[str]:
    """Put together of its four parts; ``Dev`` is the PCI device, ``Device ID`` something else."""
    parts = [None if node is None else node.text(key) for key in ("domain", "bus", "dev", "func")]
    if any(part is None for part in parts):
        return None
    place = "{}:{}:{}.{}".format(*parts)
    return place if lookalike.BUS.fullmatch(place) else None


def _listing(lines: list[str]) -> Optional[Reading]:
    """``-L``: cells have no blanks, headers may (``CPU Affinity``)."""
    header: list[str] = []
    cards: dict[int, CardReading] = {}
    for line in lines:
        names = re.split(r"\s{2,}", line.strip().lower())
        if {"dev", "uuid"} <= set(names):
            header = names
            continue
        cells = line.split()
        row = dict(zip(header, cells)) if len(cells) == len(header) else {}
        index = ordinal(row.get("dev"))
        if index is None:
            continue
        place = lookalike.BUS.fullmatch(row.get("bus", ""))
        cards[index] = CardReading(
            index=index,
            uuid=word(row["uuid"]),
            serial=word(row.get("sn")),
            bus_id=None if place is None else place.group(),
        )
    return Reading(list(cards.values()), len(cards)) if cards else None


def _memory(text: Optional[str]) -> Optional[int]:
    """Without its unit it was cut off."""
    return tables.amount_mib(text) if re.search(r"[KMGT]iB$", text or "") else None
