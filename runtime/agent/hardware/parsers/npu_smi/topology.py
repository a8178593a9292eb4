"""``npu-smi info -t topo``: how each card reaches each other, as a matrix of words."""

from __future__ import annotations

import re
from typing import Any

from runtime.agent.hardware.reading import Reading

_GAP = re.compile(r"\t+|\s{2,}")
_NPU = re.compile(r"NPU\d{1,9}")


def is_matrix(lines: list[str]) -> bool:
    return any(_header(line) for line in lines)


def _header(line: str) -> list[str]:
    fields = _GAP.split(line.strip())
    return fields if len(fields) > 1 and _NPU.fullmatch(fields[0]) and _NPU.fullmatch(fields[1]) else []


def parse(lines: list[str]) -> Reading:
    """``more``: ``npus``, ``links`` (``all KIND``, or the kinds there are), ``pairs`` and ``affinity``."""
    header: list[str] = []
    pairs: dict[str, str] = {}
    affinity: dict[str, dict[str, Any]] = {}
    for line in lines:
        fields = _GAP.split(line.strip())
        if _header(line):
            header, pairs, affinity = fields, {}, {}
        elif header and _NPU.fullmatch(fields[0]) and len(fields) > 1:
            row = dict(zip(header, fields[1:]))
            for other, kind in row.items():
                if _NPU.fullmatch(other) and other != fields[0]:
                    pairs["-".join(sorted((fields[0], other), key=lambda name: int(name[3:])))] = kind
            affinity[fields[0]] = {"cpu_affinity": row.get("CPU Affinity")}
    kinds = sorted(set(pairs.values()))
    more = {"npus": len(affinity), "affinity": affinity, "pairs": pairs}
    return Reading(devices=len(affinity), more={**more, "links": f"all {kinds[0]}" if len(kinds) == 1 else kinds})
