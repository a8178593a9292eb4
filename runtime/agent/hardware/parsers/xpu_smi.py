"""Kunlunxin's tools: ``xpu-smi`` of the P800 (a look-alike of nvidia-smi, ``-q`` with keys), and the older ``xpu_smi``
(tables DEVICES, VIDEO, PROCESSES). Either may answer to either name, so the text decides.

One K200 is two devices with the same PCI address and serial number; only the device node tells them apart. What the
older tool calls MB are MiB. The cache (L3) is printed like the memory, and never taken for it.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import lookalike, tables, tree
from runtime.agent.hardware.pci import printed_bus_id
from runtime.agent.hardware.reading import BAD, OK, CardReading, Reading
from runtime.agent.hardware.values import measured, number, whole, word

_HEADING = re.compile(r"XPU\s+((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_LISTED = re.compile(r"XPU (?P<index>\d{1,9}): (?P<name>.+?) \(UUID: (?P<uuid>[^\s()]+)\)")
_LABELS = {
    "bus": "bus-id",
    "ecc": "uncorr. ecc",
    "sensors": "pwr:|power",
    "memory": "memory-usage",
    "load": "xpu-util",
}
_UNHEADED = {"bus": (0, 1), "ecc": (0, 2), "sensors": (1, 0), "memory": (1, 1), "load": (1, 2)}
_VERSION = re.compile(r"Driver Version\s*:\s*(\d[\w.]*)")
_GOOD_STATES = {"running", "normal"}


def parse(arguments: list[str], text: str) -> Reading:
    """Cards of any of the tools' texts; the arguments are not needed to tell them apart."""
    lines = tables.undoubled(text)
    reading = _keys(lines) or _devices(lines) or _listing(lines)
    return reading or _table(text)


def _table(text: str) -> Reading:
    table = lookalike.read(text, _LABELS, _UNHEADED)
    cards = []
    for card in table.cards.values():
        errors = whole(card.cell("ecc"))
        cards.append(card.reading(more={} if errors is None else {"ecc_uncorrectable": errors}))
    return table.reading(cards)


def _keys(lines: list[str]) -> Optional[Reading]:
    """``-q``; the number of attached cards is not that of the blocks below it where one was asked for."""
    root = tree.from_keys(lines, _HEADING)
    blocks = [node for node in root.all("gpu") if printed_bus_id(node.value) is not None]
    if not blocks and not any("XPUSMI LOG" in line for line in lines):
        return None
    cards = {node.value: _card(node) for node in blocks}
    attached = whole(root.text("attached_xpus"))
    version = re.match(r"\d[\w.]*", root.text("driver_version") or "")
    sections = [node.at("processes") for node in blocks]
    none_run = bool(sections) and all(section is not None and section.value == "None" for section in sections)
    return Reading(
        list(cards.values()),
        len(cards) or None,
        driver_version=None if version is None else version.group(),
        processes=[] if none_run else None,
        more={} if attached is None else {"attached_reported": attached},
    )


def _card(node: tree.Node) -> CardReading:
    errors = whole(node.text("ecc_errors", "volatile", "dram_uncorrectable"))
    return CardReading(
        index=whole(node.text("minor_number")),
        name=word(node.text("product_name")),
        uuid=_uuid(node.text("xpu_uuid|uuid")),
        serial=word(node.text("serial_number")),
        bus_id=printed_bus_id(node.value),
        memory_total_mib=_with_unit(node.text("memory_usage", "total")),
        memory_used_mib=_with_unit(node.text("memory_usage", "used")),
        utilization_pct=measured(node.text("utilization", "xpu"), "%"),
        temperature_c=measured(node.text("temperature", "xpu_current_temp"), "C"),
        power_w=measured(node.text("power_readings", "power_draw"), "W"),
        power_limit_w=measured(node.text("power_readings", "enforced_power_limit"), "W"),
        more={} if errors is None else {"ecc_uncorrectable": errors},
    )


def _listing(lines: list[str]) -> Optional[Reading]:
    """``-L``."""
    cards = {}
    for match in filter(None, (_LISTED.fullmatch(line.strip()) for line in lines)):
        index = int(match["index"])
        cards[index] = CardReading(index=index, name=match["name"], uuid=_uuid(match["uuid"]))
    return Reading(list(cards.values()), len(cards)) if cards else None


def _devices(lines: list[str]) -> Optional[Reading]:
    """The older tool: which table a row is of, the header above it tells."""
    header: list[str] = []
    cards: dict[int, CardReading] = {}
    processes: Optional[list[dict[str, Any]]] = None
    driver = None
    rules = 0
    seen = False
    for line in lines:
        version = _VERSION.search(line)
        driver = driver if version is None else version.group(1)
        cells = tables.cells(line)
        if cells is None:
            rules += tables.is_rule(line)
            if rules > 1 and "pid" in header:
                processes = processes or []
            continue
        names = [cell.lower() for cell in cells]
        if "devid" in names:
            header, rules = names, 0
            if "pci addr" in names:
                seen, cards, processes = True, {}, None
            continue
        if not header or not line.endswith("|") or len(cells) != len(header):
            continue
        row = dict(zip(header, cells))
        index = whole(row["devid"]) if row["devid"].isdigit() else None
        if index is None:
            continue
        if "pci addr" in row:
            cards[index] = _device(index, row)
        elif "pid" in row and whole(row["pid"]) is not None:
            memory = tables.amount_mib(row.get("memory"), "MB")
            entry = {"index": index, "pid": whole(row["pid"]), "name": word(row.get("command")), "memory_mib": memory}
            processes = [one for one in processes or [] if one != entry] + [entry]
    if not seen:
        return None
    return Reading(list(cards.values()), len(cards) or None, driver_version=driver, processes=processes)


def _device(index: int, row: dict[str, str]) -> CardReading:
    used, total = tables.used_total_mib(row.get("memory"), "MB")
    power = tables.pair(row.get("power")) or (row.get("power"), None)
    state = word(row.get("state"))
    bad = state is not None and state.lower().startswith("err")
    good = state is not None and state.lower() in _GOOD_STATES
    node = word(row.get("inode"))
    return CardReading(
        index=index,
        name=word(row.get("model")),
        serial=word(row.get("sn")),
        bus_id=printed_bus_id(row["pci addr"]),
        memory_total_mib=total,
        memory_used_mib=used,
        utilization_pct=number(row.get("userate")),
        temperature_c=number(row.get("temp")),
        power_w=number(power[0]),
        power_limit_w=number(power[1]),
        health=BAD if bad else OK if good else None,
        health_raw=state,
        failure=f"state {state}" if bad else None,
        more={} if node is None else {"device_node": node},
    )


def _uuid(text: Optional[str]) -> Optional[str]:
    """None for a uuid that the tool could not read and fills with question marks."""
    uuid = word(text)
    return None if uuid is None or "?" in uuid else uuid


def _with_unit(text: Optional[str]) -> Optional[int]:
    """Memory; without its unit it was cut off."""
    return tables.amount_mib(text) if re.search(r"[KMGT]i?B$", text or "") else None
