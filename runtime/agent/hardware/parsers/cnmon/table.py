"""``cnmon``: two lines a card. v4 tells the driver with each card and no bus id; its vMemory is not the card's."""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.pci import printed_bus_id
from runtime.agent.hardware.reading import CardReading, Reading
from runtime.agent.hardware.values import number, ordinal, whole, word

_VERSION = re.compile(r"CNMON\s+(\S+)(?:.*\bDriver\s+(\S+))?")
_PROCESS = re.compile(r"(?P<index>\d{1,9})\s+(?P<part>\S+)\s+(?P<pid>\d{1,9})\s+" + tables.NAME_AND_MEMORY)


def parse_table(text: str) -> Optional[Reading]:
    cards: dict[Optional[int], CardReading] = {}
    version: Optional[str] = None
    driver: Optional[str] = None
    processes: Optional[list[dict[str, Any]]] = None
    titles: list[list[str]] = []
    for block in tables.blocks(text):
        first = block[0]
        found = _VERSION.match(first[0])
        if found is not None:
            version, driver, cards, processes, titles = found[1], found[2], {}, None, []
        elif first[0].startswith("Processes"):
            processes = []
        elif processes is not None:
            matches = [_PROCESS.fullmatch(row[0]) for row in block]
            processes += [tables.process(match) for match in matches if match]
        elif first[0].split()[:1] == ["Card"] and len(first) > 2:
            titles = block
        elif titles and len(first) > 2 and ordinal((first[0].split() or [""])[0]) is not None:
            card, own = _card(titles, block)
            cards[card.index], driver = card, driver or own
    if version is None and not cards:
        return None
    devices = len(cards) if titles else None
    return Reading(
        list(cards.values()), devices, driver_version=driver, processes=processes, more={"cnmon_version": version}
    )


def _card(titles: list[list[str]], block: list[list[str]]) -> tuple[CardReading, Optional[str]]:
    """The card, and the driver's version where it stands with the card."""
    head, words = titles[0][0].split(), block[0][0].split()
    begin = head.index("Name") if "Name" in head else 1
    end = len(words) - 1 if "Firmware" in head and len(words) > begin + 1 else len(words)
    middle, right = block[0][1].split(), tables.titled(titles[0][2], block[0][2])
    second = block[1] if len(block) > 1 and len(block[1]) > 2 else ["", "", ""]
    below = titles[1] if len(titles) > 1 and len(titles[1]) > 2 else ["", "", ""]
    sensors = tables.titled(below[0], second[0])
    power, limit = tables.pair(sensors.get("Pwr:Usage/Cap")) or (None, None)
    used, total = tables.used_total_mib(second[1])
    more: dict[str, Any] = {"ecc_error": whole(right.get("Ecc-Error")), "fan_pct": number(sensors.get("Fan"))}
    mode = below[2].split()
    if "Compute-Mode" in mode and len(second[2].split()) == len(mode):
        more["compute_mode"] = word(second[2].split()[mode.index("Compute-Mode")])
    own = middle[-1] if "Driver" in titles[0][1].split() and len(middle) > 1 else None
    card = CardReading(
        index=ordinal(words[0]),
        name=word(" ".join(words[begin:end])),
        bus_id=printed_bus_id(middle[0]) if middle else None,
        memory_total_mib=total,
        memory_used_mib=used,
        utilization_pct=number(right.get("Util")),
        temperature_c=number(sensors.get("Temp")),
        power_w=number(power),
        power_limit_w=number(limit),
        more=more,
    )
    return card, own
