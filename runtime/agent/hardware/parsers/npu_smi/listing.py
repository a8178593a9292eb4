"""``npu-smi info -l`` (cards and their numbers of chips) and ``-m`` (chip -> the number that programs use)."""

from __future__ import annotations

import re
from typing import Any

from runtime.agent.hardware.parsers.npu_smi.details import Block
from runtime.agent.hardware.reading import Reading
from runtime.agent.hardware.values import ordinal

_GAP = re.compile(r"\t+|\s{2,}")
_TITLES = ["NPU ID", "Chip ID", "Chip Logic ID"]


def is_map(lines: list[str]) -> bool:
    return any(_GAP.split(line.strip())[:3] == _TITLES for line in lines)


def parse_map(lines: list[str]) -> Reading:
    """``more["map"]``: a chip that programs can use each; ``more["mcu"]``: controllers, which are no devices."""
    chips: list[dict[str, Any]] = []
    controllers: list[dict[str, Any]] = []
    for line in lines:
        fields = _GAP.split(line.strip())
        if fields[:3] == _TITLES:
            chips, controllers = [], []  # asked once more: the last answer counts
            continue
        if len(fields) < 3 or ordinal(fields[0]) is None or ordinal(fields[1]) is None:
            continue
        place = {"npu_id": ordinal(fields[0]), "chip_id": ordinal(fields[1])}
        if ordinal(fields[2]) is None:
            controllers.append(place)
        else:
            name = fields[3] if len(fields) > 3 else None
            chips.append({**place, "logic_id": ordinal(fields[2]), "name": name})
    return Reading(devices=len(chips), more={"map": chips, "mcu": controllers})


def parse_list(blocks: list[Block]) -> Reading:
    total = next(ordinal(block["Total Count"]) for block in blocks if "Total Count" in block)
    cards = [block for block in blocks if "NPU ID" in block]
    counts = [ordinal(block.get("Chip Count")) for block in cards]
    known = [count for count in counts if count is not None]
    devices = sum(known) if cards and len(known) == len(cards) == total else None
    if total == 0:
        devices = 0
    ids = [ordinal(block["NPU ID"]) for block in cards]
    return Reading(devices=devices, more={"total_count": total, "npu_ids": ids, "chip_count": counts})
