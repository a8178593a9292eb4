"""What must hold for a reading of any text whatever: it tells only what the text says."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from typing import Optional

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.reading import BAD, OK, WARNING, CardReading, Reading

NUMBER = re.compile(r"\d+(?:[.,]\d+)?")
SCALES = (1.0, 2.0**10, 2.0**20, 2.0**-10, 2.0**-20)
"""Memory is told in MiB, whatever unit it is printed in."""


def lies(reading: Reading, text: str, arguments: list[str]) -> list[str]:
    """Each untruth in words; an empty list is what every parser must give. A tool asked for card 3 alone (``-i 3``)
    need not print the number again."""
    found: list[str] = []
    json.dumps(dataclasses.asdict(reading), allow_nan=False)
    bare = "\n".join(tables.lines(text))
    flat = re.sub(r"\s+", "", bare + html.unescape(bare)).casefold()
    numbers = {float(number.replace(",", ".")) for number in NUMBER.findall(bare)}
    numbers.update(float(number) for number in re.findall(r"\d+", " ".join(arguments)))
    for number in NUMBER.findall(bare):
        numbers.update(float(part) for part in re.split("[.,]", number))
    if len(reading.cards) > len(bare.split("\n")):
        found.append(f"{len(reading.cards)} cards in {len(bare.splitlines())} lines")
    if reading.devices is None and reading.cards:
        found.append("cards, but no count")
    for card in reading.cards:
        found += _of_card(card, flat, numbers)
    keys = [
        (card.index, card.bus_id, card.uuid, card.serial, *sorted(map(str, card.more.items())))
        for card in reading.cards
    ]
    named = [key for key in keys if any(value is not None for value in key[:3])]
    if len(set(named)) != len(named):
        found.append(f"one card twice: {named}")
    return found


def _of_card(card: CardReading, flat: str, numbers: set[float]) -> list[str]:
    found = [
        f"{name} {value!r} is not in the text"
        for name, value in (("name", card.name), ("uuid", card.uuid), ("serial", card.serial))
        if value is not None and (not value or re.sub(r"\s+", "", value).casefold() not in flat)
    ]
    if card.bus_id is not None and not all(part in flat for part in re.split("[:.]", card.bus_id.casefold())):
        found.append(f"bus {card.bus_id} is not in the text, nor are its parts")
    if card == CardReading() or _unnamed(card):
        found.append(f"a card of nothing: {card}")
    memory: tuple[tuple[str, Optional[float]], ...] = (
        ("memory_total_mib", card.memory_total_mib),
        ("memory_used_mib", card.memory_used_mib),
    )
    others = (
        ("index", card.index),
        ("utilization_pct", card.utilization_pct),
        ("temperature_c", card.temperature_c),
        ("power_w", card.power_w),
        ("power_limit_w", card.power_limit_w),
    )
    for name, value in memory:
        if value is not None and not any(_near(value, number * scale) for number in numbers for scale in SCALES):
            found.append(f"{name} {value} is not in the text")
    for name, value in others:
        if value is not None and abs(float(value)) not in numbers:
            found.append(f"{name} {value} is not in the text")
    if card.health not in (None, OK, WARNING, BAD):
        found.append(f"health {card.health!r}")
    if card.failure is not None and card.health != BAD:
        found.append(f"condemned ({card.failure}), but its health is {card.health}")
    return found


def _unnamed(card: CardReading) -> bool:
    """Nothing but empty marks: a card must at least have a name, a place or a reading."""
    empty = dataclasses.replace(card, more={}, name_cut=False)
    return empty == CardReading() and not any(value is not None for value in card.more.values())


def _near(value: float, other: float) -> bool:
    return abs(value - other) < max(1.0, value * 1e-9)
