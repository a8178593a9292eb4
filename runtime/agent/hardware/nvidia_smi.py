"""nvidia-smi's CSV, for nodes without NVML: columns by their header, values one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from runtime.agent.hardware.detector import CollectorError
from runtime.agent.hardware.pci import normal_bus_id
from runtime.agent.hardware.values import number, whole, word

FIELDS = (
    *("index", "uuid", "pci.bus_id", "name", "memory.total", "memory.used", "utilization.gpu"),
    *("temperature.gpu", "power.draw", "driver_version"),
)
"""Fields that every driver knows: an unknown one makes the whole query fail."""

QUERY = (f"--query-gpu={','.join(FIELDS)}", "--format=csv")

EXTRA_FIELDS = ("index", "compute_cap", "mig.mode.current")
"""Asked for apart, once in a while, since drivers before 510 and 450 do not know them."""

EXTRA_QUERY = (f"--query-gpu={','.join(EXTRA_FIELDS)}", "--format=csv")

LOST_WORDS = {
    "gpu is lost": "GPU is lost",
    "gpu requires reset": "GPU requires reset",
    "unknown error": "unknown error for its handle",
}

_HANDLE = re.compile(
    r"Unable to determine the device handle for GPU\s*(?P<index>\d+(?=:\s))?:?\s*"
    r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])?\s*:\s*(?P<reason>[^\n]+)"
)
_WHOLE_FAILURES = (
    "NVIDIA-SMI has failed",
    "Failed to initialize NVML",
    "NVIDIA-SMI couldn't find",
    "is not a valid field to query",
)
NO_DEVICES = "No devices were found"


@dataclass(frozen=True)
class Row:
    """One card as the tool printed it; None where it printed no value. ``failure``: what condemns the card."""

    index: Optional[int] = None
    uuid: Optional[str] = None
    bus_id: Optional[str] = None
    name: Optional[str] = None
    memory_total_mib: Optional[int] = None
    memory_used_mib: Optional[int] = None
    utilization_pct: Optional[float] = None
    temperature_c: Optional[float] = None
    power_w: Optional[float] = None
    driver_version: Optional[str] = None
    compute_capability: Optional[str] = None
    mig_enabled: Optional[bool] = None
    failure: Optional[str] = None


def parse_csv(text: str) -> list[Row]:
    """Rows of ``--query-gpu=... --format=csv`` (with its header), and a row for each card that the tool could
    not open. Raises CollectorError when the tool speaks of all cards at once, or of none.
    """
    header: Optional[list[str]] = None
    rows: list[Row] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        lost = _HANDLE.search(line)
        if lost is not None:
            rows.append(
                Row(
                    index=int(lost["index"]) if lost["index"] else None,
                    bus_id=normal_bus_id(lost["bus"]),
                    failure=lost["reason"].strip(),
                )
            )
        elif any(words in line for words in _WHOLE_FAILURES):
            raise CollectorError(f"nvidia-smi: {line.strip()}")
        elif NO_DEVICES in line:
            return []
        elif header is None:
            names = [re.sub(r"\s*\[.*?\]$", "", cell.strip()).lower() for cell in line.split(",")]
            if "index" in names or "uuid" in names:
                header = names
        else:
            row = _row(header, line)
            if row is not None:
                rows.append(row)
    if header is None and not rows:
        raise CollectorError("nvidia-smi: its output has neither a header nor an error that is known")
    return rows


def _row(header: list[str], line: str) -> Optional[Row]:
    cells = _cells(header, line)
    if cells is None:
        return None
    index = whole(cells.get("index"))
    capability = word(cells.get("compute_cap"))
    mig = word(cells.get("mig.mode.current"))
    return Row(
        index=index,
        uuid=word(cells.get("uuid")),
        bus_id=normal_bus_id(cells.get("pci.bus_id")),
        name=word(cells.get("name")),
        memory_total_mib=whole(cells.get("memory.total")),
        memory_used_mib=whole(cells.get("memory.used")),
        utilization_pct=number(cells.get("utilization.gpu")),
        temperature_c=number(cells.get("temperature.gpu")),
        power_w=number(cells.get("power.draw")),
        driver_version=word(cells.get("driver_version")),
        compute_capability=capability,
        mig_enabled=None if mig is None else mig.lower() == "enabled",
        failure=_failure(cells),
    )


def _cells(header: list[str], line: str) -> Optional[dict[str, str]]:
    """Cells by column. The separator is comma and blank, so a decimal comma is none. More cells than columns:
    the name holds commas, the only value that may; fewer: not a row of this table."""
    cells = [cell.strip() for cell in re.split(r", |,$", line)] if ", " in line else line.split(",")
    surplus = len(cells) - len(header)
    if surplus > 0 and "name" in header:
        at = header.index("name")
        cells[at : at + surplus + 1] = [", ".join(cells[at : at + surplus + 1])]
    if len(cells) != len(header):
        return None
    return dict(zip(header, cells))


def _failure(cells: dict[str, str]) -> Optional[str]:
    """What the row says against the card itself: a lone ``[Unknown Error]`` or ``ERR!`` is a value unread."""
    if cells.get("name", "").strip() == "ERR!":
        return "ERR! in place of its name"
    found = [cell.strip().strip("[]").lower() for cell in cells.values() if cell.strip().startswith("[")]
    for words in ("gpu is lost", "gpu requires reset"):
        if words in found:
            return LOST_WORDS[words]
    if {"uuid", "name"} & {key for key, cell in cells.items() if cell.strip().lower() == "[unknown error]"}:
        return LOST_WORDS["unknown error"]
    return None
