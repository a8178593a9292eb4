"""MetaX's ``mx-smi``: the table (since 2.2 with a state and a limit of power), ``--show-...`` with keys, ``-L``.

Keys count memory in KB, several kinds of it with names that contain each other: ``vram`` is the card's own. A card
that cannot be used stays in the list as ``Not Available(...)``.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import lookalike, tables, tree
from runtime.agent.hardware.reading import BAD, OK, CardReading, Reading
from runtime.agent.hardware.values import measured, word

_HEADING = re.compile(r"(GPU\s?#\d{1,9}\s+\S.*)")
_BLOCK = re.compile(
    r"GPU\s?#(?P<index>\d{1,9})\s+(?P<name>\S.*?)\s+(?P<bus>(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"
    r"(?:\s+(?P<state>(?:Not\s)?Available(?:\s?\([^()]*\))?))?(?:\s+\(?UUID:\s*(?P<uuid>[^\s()]+)\)?)?\s*"
)
_LABELS = {
    "bus": "bus-id",
    "load": "gpu-util",
    "sensors": "pwr:|power",
    "memory": "memory-usage",
    "state": "gpu-state",
}
_UNHEADED = {"bus": (0, 1), "load": (0, 2), "sensors": (1, 0), "memory": (1, 1), "state": (1, 2)}
_KIB = re.compile(r"(\d{1,18})\s*Ki?B")
_DRIVER = re.compile(r"Kernel Mode Driver Version\s*:\s*(\d[\w.]*)")


def parse(arguments: list[str], text: str) -> Reading:
    """Cards of the table or of the blocks; the text itself tells which it is."""
    return _blocks(tables.undoubled(text)) or _table(text)


def _verdict(state: Optional[str]) -> tuple[Optional[str], Optional[str]]:
    """(health, failure) of a state's words; other words than these two are no verdict."""
    words = (state or "").lower()
    if words.startswith("not available"):
        return BAD, state
    return (OK if words == "available" else None), None


def _table(text: str) -> Reading:
    table = lookalike.read(text, _LABELS, _UNHEADED)
    cards = []
    for card in table.cards.values():
        state = word(card.cell("state"))
        health, failure = _verdict(state)
        cards.append(card.reading(health=health, health_raw=state, failure=failure))
    return table.reading(cards)


def _blocks(lines: list[str]) -> Optional[Reading]:
    """``GPU#0  MXN260  0000:0f:00.0`` with keys below it, or in ``-L`` with a state and a uuid behind it."""
    root = tree.from_keys(lines, _HEADING)
    cards: dict[int, CardReading] = {}
    for node in root.all("gpu"):
        heading = _BLOCK.fullmatch(node.value or "")
        if heading is not None:
            cards[int(heading["index"])] = _card(heading, node)
    if not cards:
        return None
    driver = next(filter(None, (_DRIVER.search(line) for line in lines)), None)
    return Reading(list(cards.values()), len(cards), driver_version=None if driver is None else driver.group(1))


def _card(heading: re.Match[str], node: tree.Node) -> CardReading:
    health, failure = _verdict(heading["state"])
    total = _KIB.fullmatch(node.text("memory", "vram_total") or "")
    used = _KIB.fullmatch(node.text("memory", "vram_used") or "")
    more: dict[str, Any] = {} if used is None else {"memory_used_kib": int(used.group(1))}
    return CardReading(
        index=int(heading["index"]),
        name=heading["name"],
        uuid=word(heading["uuid"]),
        bus_id=heading["bus"],
        memory_total_mib=None if total is None else int(total.group(1)) // 1024,
        memory_used_mib=None if used is None else int(used.group(1)) // 1024,
        utilization_pct=measured(node.text("utilization", "gpu"), "%"),
        temperature_c=measured(node.text("chip_temperature|temperature", "hotspot"), "C"),
        power_w=measured(node.text("board_power", "total"), "W"),
        health=health,
        health_raw=heading["state"],
        failure=failure,
        more=more,
    )
