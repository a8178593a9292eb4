"""Biren's ``brsmi``: a table in the style of nvidia-smi, three lines a card, the temperature first and no fan."""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import absent, tables
from runtime.agent.hardware.pci import printed_bus_id
from runtime.agent.hardware.reading import CardReading, Reading
from runtime.agent.hardware.values import number, ordinal, whole, word

_DRIVER = re.compile(r"Driver Version:\s*(\S+)")
_PROCESS = re.compile(r"(?P<index>\d{1,9})\s+(?P<svi>\S+)\s+(?P<pid>\d{1,9})\s+" + tables.NAME_AND_MEMORY)
_NO_PROCESSES = re.compile(r"No running process", re.IGNORECASE)


def parse(arguments: list[str], text: str) -> Reading:
    """What a text of ``brsmi`` says."""
    lines = tables.lines(text)
    cards: dict[Optional[int], CardReading] = {}
    processes: Optional[list[dict[str, Any]]] = None
    driver: Optional[str] = None
    titles: list[list[str]] = []
    for block in tables.blocks(text):
        joined = " ".join(cell for row in block for cell in row)
        version = _DRIVER.search(joined)
        if version is not None:
            driver, cards, processes, titles = version[1], {}, None, []
        elif any(row[0].startswith("Processes") for row in block):
            processes = processes or []
        elif processes is not None:
            found = [_PROCESS.fullmatch(row[0]) for row in block]
            processes += [tables.process(match) for match in found if match]
        elif "Bus-Id" in joined and len(block[0]) > 2:
            titles = block
        elif titles and len(block[0]) > 2 and printed_bus_id(block[0][1]):
            card = _card(titles, block)
            cards[card.index] = card
    if driver is None and not cards:
        missing = absent.complaint(lines)
        return Reading(errors=[missing] if missing else [])
    return Reading(list(cards.values()), len(cards) if titles else None, driver_version=driver, processes=processes)


def _card(titles: list[list[str]], block: list[list[str]]) -> CardReading:
    index, name = (*block[0][0].split(maxsplit=1), "", "")[:2]
    second = block[1] if len(block) > 1 and len(block[1]) > 2 else ["", "", ""]
    sensors = tables.titled(titles[1][0] if len(titles) > 1 else "", second[0])
    power, limit = tables.pair(sensors.get("Pwr:Usage/Cap")) or (None, None)
    used, total = tables.used_total_mib(second[1])
    third = block[2][-1] if len(block) > 2 else None
    more: dict[str, Any] = {"ecc_uncorrectable": whole(block[0][2])}
    if third is not None:
        more["svi"] = word(third)
    return CardReading(
        index=ordinal(index),
        name=word(name),
        bus_id=printed_bus_id(block[0][1]),
        memory_total_mib=total,
        memory_used_mib=used,
        utilization_pct=number((second[2].split() or [""])[0]),
        temperature_c=number(sensors.get("Temp")),
        power_w=number(power),
        power_limit_w=number(limit),
        more=more,
    )
