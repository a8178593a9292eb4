"""Plain-text tables of vendors' tools: rows by "|", rules skipped, cells such as ``used / total`` taken apart.

Widths differ by tool version and by terminal, so nothing here counts columns of characters. Control sequences,
carriage returns and trailing blanks are taken off first. Plain numbers are :func:`values.number`'s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Optional

from runtime.agent.hardware.values import word

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RUN = re.compile(r"(.)\1{999,}")
_RULE = re.compile(r"[\s+|=\-]*[=\-]{3,}[\s+|=\-]*")
_AMOUNT = re.compile(r"(\d+(?:[.,]\d+)?)\s*([KMGT]iB|[KMGT]?B)?", re.IGNORECASE)
_SIDE = r"(?:\[?N/A\]?|[^/()]+?)"
# A bracket that was cut off may have lost digits with it.
_PAIR = re.compile(rf"(?P<used>{_SIDE})\s*(?:/\s*(?P<total>{_SIDE})|\(\s*(?P<whole>{_SIDE})\s*\))", re.IGNORECASE)
NAME_AND_MEMORY = r"(?P<name>.*?)\s+(?<!:\d\d\s)(?P<memory>\d+\s*\w*iB)"
"""The end of a process's row; a year behind a time of day is no memory."""
_TO_MIB = {"": 1.0 / 2**20, "k": 1.0 / 2**10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}


def lines(text: str) -> list[str]:
    """Lines without control sequences, carriage returns and trailing blanks; the empty ones stay. One sign a thousand
    times over says nothing, and takes patterns the square of its length: of such a run the beginning stays."""
    plain = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return [line.rstrip() for line in _RUN.sub(lambda run: run[0][:100], plain).split("\n")]


def undoubled(text: str) -> list[str]:
    """The lines that are not empty, each once where a pasted text has it twice in a row."""
    found = [line for line in lines(text) if line]
    return [line for at, line in enumerate(found) if at == 0 or line != found[at - 1]]


def is_rule(line: str) -> bool:
    """Whether a line is drawn, such as ``+-----+-----+`` or ``|=====|``, and says nothing."""
    return _RULE.fullmatch(line) is not None


def cells(line: str) -> Optional[list[str]]:
    """Stripped cells of a row, the outer bars left off; None for a rule and for a line without a bar."""
    if "|" not in line or is_rule(line):
        return None
    parts = [part.strip() for part in line.strip().split("|")]
    if not parts[0]:
        parts = parts[1:]
    if parts and not parts[-1]:
        parts = parts[:-1]
    return parts or None


def rows(text: str) -> Iterator[list[str]]:
    """All rows of all tables in a text, in order."""
    for block in blocks(text):
        yield from block


def blocks(text: str) -> Iterator[list[list[str]]]:
    """Groups of rows that stand between two rules, or between a rule and text that is no row: a table's header,
    or the lines of one card where the tool draws a rule between cards."""
    block: list[list[str]] = []
    for line in lines(text):
        row = cells(line)
        if row is not None:
            block.append(row)
        elif block:
            yield block
            block = []
    if block:
        yield block


def amount_mib(cell: Optional[str], unit: str = "MiB") -> Optional[int]:
    """An amount of memory in MiB, rounded: ``81559MiB``, ``64 GB``, ``1024``. Tools that write MB, KB and GB mean
    powers of 1024 too. ``unit``: that of a number without one. None for everything else."""
    match = _AMOUNT.fullmatch((cell or "").strip())
    if match is None:
        return None
    prefix = (match.group(2) or unit).lower()[:1].replace("b", "")
    value = float(match.group(1).replace(",", ".")) * _TO_MIB[prefix]
    return round(value) if math.isfinite(value) else None


def pair(cell: Optional[str]) -> Optional[tuple[str, str]]:
    """The two sides of ``a / b`` and of ``a(b)``, stripped; None when the cell is no such pair."""
    match = _PAIR.fullmatch((cell or "").strip())
    return None if match is None else (match["used"].strip(), (match["total"] or match["whole"]).strip())


def used_total_mib(cell: Optional[str], unit: str = "MiB") -> tuple[Optional[int], Optional[int]]:
    """(used, total) in MiB of ``1MiB / 81559MiB``, ``504 / 8064 MB`` (one unit for both) or ``2MiB(16384MiB)``; each
    None when it is not a number. A cell that is no pair, such as ``N/A``, says neither."""
    sides = pair(cell)
    if sides is None:
        return None, None
    used, total = sides
    shared = _AMOUNT.fullmatch(total)
    unit = (shared.group(2) if shared is not None else None) or unit
    return amount_mib(used, unit), amount_mib(total, unit)


def process(match: re.Match[str]) -> dict[str, Any]:
    """A row of a table of processes, matched with the groups ``index``, ``pid``, ``name`` and ``memory``, as
    ``Reading.processes`` has it."""
    memory = amount_mib(match["memory"])
    return {"index": int(match["index"]), "pid": int(match["pid"]), "name": word(match["name"]), "memory_mib": memory}


def titled(titles: str, cell: str) -> dict[str, str]:
    """Title -> value, both in the order in which they stand in their cells: ``Temp  Perf  Pwr:Usage/Cap`` over
    ``30  P0  35 W / 300 W``. Blanks before a unit and round a "/" belong to the value."""
    glued = re.sub(r"\s*/\s*", "/", re.sub(r"(?<=\d)\s+(?=(?:W|[KMGT]i?B|C|%)(?:\W|$))", "", cell))
    return dict(zip(titles.split(), glued.split()))
