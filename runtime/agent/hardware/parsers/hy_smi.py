"""Hygon's ``hy-smi`` (``rocm-smi`` in old toolkits): its table, its ``--show...`` lines, its JSON, and the virtual
cards of ``hy-virtual``.

The JSON of some releases lacks commas and repeats empty keys, so it is read key by key. The table has shares of
memory only. "Mode Normal" is no verdict on health.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

from runtime.agent.hardware.parsers import absent, tables
from runtime.agent.hardware.pci import printed_bus_id
from runtime.agent.hardware.reading import CardReading, Reading
from runtime.agent.hardware.values import measured, number, whole, word

_HEADS = ("HCU", "DCU", "GPU")
_CARD = re.compile(r'"card([0-9]{1,6})"\s*:\s*\{([^{}]*)(?:\}|$)', re.IGNORECASE)
_PAIR = re.compile(r'"([^"]*)"\s*:\s*(?:"([^"]*)"|([-\d.]+)(?![^\s,}]))')
_LINE = re.compile(r"\s*(?:HCU|DCU|GPU)\[([0-9]{1,6})\]\s*:\s*([^:]+?)\s*:\s*(.*)", re.IGNORECASE)
_NAME = re.compile(r"card([0-9]{1,6})", re.IGNORECASE)
_INDEX = re.compile(r"[0-9]{1,6}")
_VIRTUAL = re.compile(r"Device ([0-9]{1,6}):")
_PART = re.compile(r"\s+([^:]+?)\s*:\s*(.*)")


def parse(arguments: list[str], text: str) -> Reading:
    """What a text of ``hy-smi``, ``rocm-smi`` or ``hy-virtual`` says."""
    lines = tables.lines(text)
    plain = _table(lines)
    if plain is not None:
        return plain
    said = (
        [(int(found[1]), dict(_keys(found[2]))) for found in _CARD.finditer("\n".join(lines))]
        or _by_comma(lines)
        or _by_line(lines)
    )
    if said:
        cards = [_card(index, keys) for index, keys in dict(said).items()]
        return Reading(cards, len(cards))
    virtual = _virtual(lines)
    if virtual:
        return Reading(virtual, len(virtual))
    missing = absent.complaint(lines)
    return Reading(errors=[missing] if missing else [])


def _keys(text: str) -> list[tuple[str, str]]:
    return [(name, quoted or bare) for name, quoted, bare in _PAIR.findall(text) if name]


def _by_comma(lines: list[str]) -> list[tuple[int, dict[str, str]]]:
    """CSV: a header that begins with ``device``, then a row for each card, which may begin at ``card1``."""
    titles: list[str] = []
    cards: dict[int, dict[str, str]] = {}
    for line in lines:
        row = [cell.strip().strip('"') for cell in line.split(",")]
        found = _NAME.fullmatch(row[0])
        if row[0].lower() == "device":
            titles, cards = row, {}
        elif titles and found is not None:
            cards[int(found[1])] = {name: value for name, value in zip(titles, row) if name}
    return list(cards.items())


def _by_line(lines: list[str]) -> list[tuple[int, dict[str, str]]]:
    cards: dict[int, dict[str, str]] = {}
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is not None:
            cards.setdefault(int(found[1]), {})[found[2]] = found[3].strip()
    return list(cards.items())


def _table(lines: list[str]) -> Optional[Reading]:
    """None when no header stands in the text."""
    titles: list[str] = []
    cards: dict[int, CardReading] = {}
    for line in lines:
        words = line.split()
        if len(words) > 2 and words[0] in _HEADS and "Temp" in words:
            titles, cards = words, {}
        elif titles and words and _INDEX.fullmatch(words[0]):
            # A blank cell would shift all that follow: then the number alone is certain.
            row = dict(zip(titles, words)) if len(words) == len(titles) else {}
            cards[int(words[0])] = _row(int(words[0]), titles[0], row)
    return Reading(list(cards.values()), len(cards)) if titles else None


def _row(index: int, head: str, row: dict[str, str]) -> CardReading:
    """What has not its column's unit is not that column's."""
    share = row.get("VRAM%", "")
    more: dict[str, Any] = {"memory_used_pct": whole(share) if share.endswith("%") else None}
    if "Fan" in row:
        more["fan_pct"] = measured(row["Fan"], "%")
    return CardReading(
        index=index,
        utilization_pct=measured(row.get(f"{head}%"), "%"),
        temperature_c=measured(row.get("Temp"), "C", "c"),
        power_w=measured(row.get("AvgPwr"), "W"),
        power_limit_w=measured(row.get("PwrCap"), "W"),
        more=more,
    )


_MORE: tuple[tuple[str, str, Callable[[Optional[str]], Any]], ...] = (
    ("unique_id", "unique id", word),
    ("vendor", "card vendor", word),
    ("temperature_edge_c", "temperature (sensor edge) (c)", number),
    ("temperature_mem_c", "temperature (sensor mem) (c)", number),
)


def _card(index: int, said: dict[str, str]) -> CardReading:
    keys = {name.lower(): value for name, value in said.items()}
    use = next((value for name, value in keys.items() if re.fullmatch(r"\w+ use \(%\)", name)), None)
    share = next((value for name, value in keys.items() if re.fullmatch(r"\w+ memory use \(%\)", name)), None)
    more = {key: read(keys[theirs]) for key, theirs, read in _MORE if theirs in keys}
    if share is not None:
        more["memory_used_pct"] = whole(share)
    return CardReading(
        index=index,
        name=word(keys.get("card series")),
        serial=word(keys.get("serial number")),
        bus_id=printed_bus_id(keys.get("pci bus")),
        memory_total_mib=_vram(keys, "total memory"),
        memory_used_mib=_vram(keys, "total used memory"),
        utilization_pct=number(use),
        temperature_c=number(keys.get("temperature (sensor junction) (c)", keys.get("temperature (sensor edge) (c)"))),
        power_w=number(keys.get("average graphics package power (w)")),
        power_limit_w=number(keys.get("max graphics package power (w)")),
        more=more,
    )


def _vram(keys: dict[str, str], what: str) -> Optional[int]:
    for unit in ("MiB", "B"):
        size = tables.amount_mib(keys.get(f"vram {what} ({unit.lower()})"), unit)
        if size is not None:
            return size
    return None


def _virtual(lines: list[str]) -> list[CardReading]:
    """``Device N:`` and what is indented below it; inside of a container that is the part which it was given."""
    parts: dict[int, dict[str, str]] = {}
    keys: Optional[dict[str, str]] = None
    for line in lines:
        begins, part = _VIRTUAL.fullmatch(line), _PART.fullmatch(line)
        if begins is not None:
            keys = parts.setdefault(int(begins[1]), {})
        elif part is not None and keys is not None:
            keys[part[1].lower()] = part[2]
    return [_part(index, keys) for index, keys in parts.items()]


def _part(index: int, keys: dict[str, str]) -> CardReading:
    size, _, unit = keys.get("global memory", "").partition(" ")
    in_bytes = unit == "bytes"
    more = {
        "actual_device": whole(keys.get("actual device")),
        "compute_units": whole(keys.get("compute units")),
        "memory_total_bytes": whole(size) if in_bytes else None,
    }
    return CardReading(index=index, memory_total_mib=tables.amount_mib(size, "B") if in_bytes else None, more=more)
