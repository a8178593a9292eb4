"""Huawei's ``npu-smi``: the plain table, the lists, and the ``-t`` queries of one card.

Which of them a text is shows in its own words; the arguments only say which card was asked for where the text does
not. The tool's output is for people: no form of it is promised by Huawei.
"""

from __future__ import annotations

import re

from runtime.agent.hardware.parsers import absent, tables
from runtime.agent.hardware.parsers.npu_smi import details, listing, topology
from runtime.agent.hardware.parsers.npu_smi.table import parse_table
from runtime.agent.hardware.reading import Complaint, Reading

_FAILED = re.compile(r"(dcmi\b.*?(?:failed|used).*?)\.?\s*ret is (-?\d{1,9})(?![\w:/-])", re.IGNORECASE)
_NO_RIGHTS = re.compile(r"DrvMngGetConsoleLogLevel failed")
_DEVICE_USED = -8020


def parse(arguments: list[str], text: str) -> Reading:
    """What a text of ``npu-smi ARGUMENTS`` says."""
    lines = tables.lines(text)
    failed = _complaint(lines)
    if failed is not None:
        return failed
    if any("|" in line for line in lines):
        return parse_table(lines)
    if topology.is_matrix(lines):
        return topology.parse(lines)
    if listing.is_map(lines):
        return listing.parse_map(lines)
    blocks = details.blocks(lines)
    if any("Total Count" in block for block in blocks):
        return listing.parse_list(blocks)
    reading = details.parse(arguments, blocks)
    missing = absent.complaint(lines) if reading == Reading() else None
    return Reading(errors=[missing]) if missing else reading


def _complaint(lines: list[str]) -> Reading | None:
    """The driver's management interface refused: that is said of no card."""
    for line in lines:
        found = _FAILED.search(line)
        if found is None:
            continue
        code = int(found[2])
        more: dict[str, object] = {"code": code}
        if any(_NO_RIGHTS.search(each) for each in lines):
            more["likely"] = "no permission on /dev/davinci_manager"
        kind = "device_used" if code == _DEVICE_USED else "not_initialized"
        return Reading(errors=[Complaint(found[1].strip(), kind)], more=more)
    return None
