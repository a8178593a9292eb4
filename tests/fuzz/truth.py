"""What must hold for whatever ``parse`` makes of any text: it tells only what the text says.

Cards: each has a place or a name that stands in the text, and none is there twice. Numbers: each stands in the text,
and :func:`tests.fuzz.sources.lies` shows that it comes from there.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

from runtime.agent.hardware.infiniband.ports import ETHERNET, INFINIBAND
from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.reading import BAD, OK, WARNING

NAMES = {"model", "name", "uuid", "serial", "hca", "id", "root", "ca_type", "phys_state", "profile"}
NAMES |= {"driver_version", "cuda_version", "nvml_version", "path", "container_name"}
"""Keys whose words are the text's own."""
IN_PARTS = ("cnmon", "efsmi")
"""They print the parts of a PCI address, each in a line of its own."""
OURS = {"vendor", "class", "name_truncated", "health", "pci_bus_id"}
"""What we say of a card ourselves, or derive from the rest: it makes no card."""

Leaf = tuple[tuple[str, ...], Any]


def leaves(told: Any, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """All values with their keys from the outside; places in lists do not count."""
    if isinstance(told, dict):
        for key, value in told.items():
            yield from leaves(value, (*path, str(key)))
    elif isinstance(told, (list, tuple)):
        for value in told:
            yield from leaves(value, path)
    else:
        yield path, told


def untrue(tool: str, told: dict[str, Any], text: str) -> list[str]:
    """Each untruth about cards and names in words; an empty list is what every parser must give."""
    json.dumps(told, allow_nan=False)
    bare = "\n".join(tables.lines(text))
    flat = _flat(text + bare + html.unescape(bare) + _unescaped(text))
    found = [
        f"{'.'.join(path)} {value!r} is not in the text"
        for path, value in leaves(told)
        if path[-1:] and path[-1] in NAMES and isinstance(value, str) and not (value and _flat(value) in flat)
    ]
    found += [
        f"{'.'.join(path)} {value!r} is of no address in the text"
        for path, value in leaves(told)
        if path[-1:] == ("gid_prefix",) and value and value[:4].lstrip("0") not in flat
    ]
    found += [
        f"link layer {value!r}"
        for path, value in leaves(told)
        if path[-1:] == ("link_layer",) and value not in (None, INFINIBAND, ETHERNET) and _flat(str(value)) not in flat
    ]
    cards: list[dict[str, Any]] = told.get("gpus") if isinstance(told.get("gpus"), list) else []  # type: ignore[assignment]
    if told.get("devices", 0) is None and cards:
        found.append("cards, but no count")
    ports = [(one["hca"], one["port"]) for one in told.get("ports", [])]
    if len(set(ports)) != len(ports):
        found.append(f"one port twice: {ports}")
    for card in cards:
        found += _of_card(tool, card, flat)
        if (
            card["model"]
            and "columns" not in told
            and not any(card[key] not in (None, {}, []) for key in card if key not in {*OURS, "model"})
        ):
            found.append(f"a card of a name alone: {card['model']}")
    named = [card for card in cards if any(card.get(key) is not None for key in ("index", "bus_id", "uuid"))]
    keys = [tuple(str(value) for key, value in sorted(card.items()) if key not in MEASURED) for card in named]
    if len(set(keys)) != len(keys):
        found.append(f"one card twice: {keys}")
    return found


MEASURED = {"memory_used_mib", "utilization_pct", "temperature_c", "power_w", "health", "raw", "problems"}


def _of_card(tool: str, card: dict[str, Any], flat: str) -> Iterator[str]:
    bus = card["bus_id"]
    if bus is not None:
        parts = re.split("[:.]", bus) if tool in IN_PARTS else [bus]
        if not all(part.casefold() in flat for part in parts):
            yield f"bus {bus} is not in the text"
    health = card["health"]
    if health["raw"] is None and all(value in (None, {}, []) for key, value in card.items() if key not in OURS):
        yield f"a card of nothing: {card}"
    if health["verdict"] not in (None, OK, WARNING, BAD):
        yield f"health {health}"
    if health["ok"] is False and health["verdict"] != BAD:
        yield f"condemned, but its health is {health}"


def _flat(text: str) -> str:
    return re.sub(r"[\s_|]+", "", text).casefold()


def _unescaped(text: str) -> str:
    r"""The strings of JSON as they are meant (``\u00e9``, ``\n``), for texts that have any."""
    if "\\" not in text:
        return ""
    words = re.findall(r'"(?:[^"\\]|\\.)*"', text, re.DOTALL)
    return "".join(word for word in map(_meant, words))


def _meant(word: str) -> str:
    try:
        return str(json.loads(word, strict=False))
    except ValueError:
        return ""
