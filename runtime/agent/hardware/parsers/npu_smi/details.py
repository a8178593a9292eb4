"""``npu-smi info -t TYPE -i NPU [-c CHIP]``: ``key : value`` lines in blocks.

A block is a chip when it has a Chip ID, which stands at its end with some types and at its beginning with others; a
block without one is the card's, or that of the controller on it (``mcu``), whose power is the whole card's.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Callable, Optional

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.parsers.npu_smi.table import verdict
from runtime.agent.hardware.pci import printed_bus_id
from runtime.agent.hardware.reading import BAD, CardReading, Reading
from runtime.agent.hardware.values import number, ordinal, whole, word

Block = dict[str, str]
_UNIT = re.compile(r"\s+\(")
_LINE = re.compile(r"\s*([^:]+?)\s*:\s*(.*)")

_FACTS: tuple[tuple[str, str, Callable[[Optional[str]], Any]], ...] = (
    ("vdie_id", "VDie ID", word),
    ("product", "Product Type", word),
    ("hbm_usage_pct", "HBM Usage Rate(%)", whole),
    ("memory_usage_pct", "Memory Usage Rate(%)", whole),
    ("ddr_usage_pct", "DDR Usage Rate(%)", whole),
    ("hbm_double_bit", "HBM Double Bit Error Count", whole),
    ("ddr_double_bit", "DDR Double Bit Error Count", whole),
    ("error_code", "Error Code", word),
    ("error_information", "Error Information", word),
)
"""(our key, the tool's, how its value is read): what a chip's block tells beside the common fields."""

_CARD_FACTS: tuple[tuple[str, str, Callable[[Optional[str]], Any]], ...] = (
    ("npu_id", "NPU ID", ordinal),
    ("product", "Product Name", word),
    ("serial", "Serial Number", word),
    ("bus_id", "PCIe Bus Info", printed_bus_id),
    ("chip_count", "Chip Count", ordinal),
    ("chip_fault", "Chip Fault", whole),
    ("software_version", "Software Version", word),
    ("firmware_version", "Firmware Version", word),
)


def blocks(lines: list[str]) -> list[Block]:
    """Groups of ``key : value`` lines with blank lines between; the last of two equal keys counts."""
    found: list[Block] = []
    block: Block = {}
    for line in [*lines, ""]:
        match = _LINE.fullmatch(line)
        if match is not None:
            block[_UNIT.sub("(", match[1])] = match[2].strip()
        elif not line.strip() and block:
            found.append(block)
            block = {}
    return found


def parse(arguments: list[str], found: list[Block]) -> Reading:
    """A reading whose ``more`` has what is said of the whole card."""
    card: dict[str, Any] = {}
    chips: dict[tuple[Optional[int], Optional[int]], Block] = {}
    npu: Optional[int] = None
    for block in found:
        npu = ordinal(block["NPU ID"]) if "NPU ID" in block else npu
        if block.get("Chip Name", "").lower() == "mcu":
            card["mcu_temperature_c"] = number(block.get("Temperature(C)"))
            card["card_power_w"] = _power(block)
            continue
        for key, theirs, read in _CARD_FACTS:
            if theirs in block:
                card[key] = read(block[theirs])
        if "Chip ID" in block or "Health Status" in block:
            chips[npu, ordinal(block.get("Chip ID"))] = block
    count = card.get("chip_count")
    often = Counter(npu for npu, _ in chips)
    asked = _asked(arguments, "-i")
    cards = [_chip(block, npu, asked, often[npu] > 1 or (count or 1) > 1) for (npu, _), block in chips.items()]
    cards = [each for each in cards if each.index is not None or each.health_raw is not None]
    if not chips and count == 1 and card.get("bus_id"):
        cards = [
            CardReading(card.get("npu_id"), bus_id=card["bus_id"], more={"npu_id": card.get("npu_id"), "chip_id": None})
        ]
    told = bool(cards) or "chip_fault" in card or "product" in card
    devices = (count or len(cards)) if told else None
    if chips:
        devices = len(cards) or None
    if len(often) > 1:
        for key in ("npu_id", "chip_count"):
            card.pop(key, None)  # of the last of several cards
    version = card.get("software_version")
    return Reading(cards, devices, driver_version=version, more={k: v for k, v in card.items() if v is not None})


def _chip(block: Block, npu: Optional[int], asked: Optional[int], several: bool) -> CardReading:
    chip = ordinal(block.get("Chip ID"))
    hbm = tables.amount_mib(block.get("HBM Capacity(MB)"))
    ddr = tables.amount_mib(block.get("DDR Capacity(MB)"))
    more = {key: read(block[theirs]) for key, theirs, read in _FACTS if theirs in block}
    if npu is not None:
        more.update(npu_id=npu, chip_id=chip)
    if hbm is not None and ddr is not None:
        more["ddr_capacity_mib"] = ddr
    raw = word(block.get("Health Status"))
    health = verdict(raw)
    return CardReading(
        index=chip if several else npu if npu is not None else asked,
        name=word(block.get("Chip Name")),
        bus_id=printed_bus_id(block.get("PCIe Bus Info")),
        memory_total_mib=hbm if hbm is not None else ddr,
        utilization_pct=number(block.get("Aicore Usage Rate(%)")),
        temperature_c=number(block.get("Temperature(C)", block.get("NPU Temperature(C)"))),
        power_w=_power(block),
        health=health,
        health_raw=raw,
        failure=f"health {raw}" if health == BAD else None,
        more=more,
    )


def _power(block: Block) -> Optional[float]:
    return number(block.get("NPU Real-time Power(W)", block.get("Power Dissipation(W)")))


def _asked(arguments: list[str], option: str) -> Optional[int]:
    at = arguments.index(option) + 1 if option in arguments else len(arguments)
    return ordinal(arguments[at]) if at < len(arguments) else None
