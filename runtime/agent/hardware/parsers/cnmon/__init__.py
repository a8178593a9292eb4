"""Cambricon's ``cnmon``: the plain table (v4 and v5), and ``cnmon info``, which alone has a verdict on health."""

from __future__ import annotations

from runtime.agent.hardware.parsers import absent, tables
from runtime.agent.hardware.parsers.cnmon.info import is_info, parse_info
from runtime.agent.hardware.parsers.cnmon.table import parse_table
from runtime.agent.hardware.reading import Reading


def parse(arguments: list[str], text: str) -> Reading:
    """What a text of ``cnmon ARGUMENTS`` says."""
    lines = tables.lines(text)
    reading = parse_info(lines) if is_info(lines) else parse_table(text)
    if reading is not None:
        return reading
    missing = absent.complaint(lines)
    return Reading(errors=[missing] if missing else [])
