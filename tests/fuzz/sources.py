"""Where a number that was told comes from: out of the text, and from a place where a reading may stand.

A number counts as told by the text when it stands there outside of dates, PCI addresses and UUIDs. That alone proves
little, since some 0 stands in every text. So one of the numbers told is blotted out of the text wherever it stands,
and must then be told no more: what stays is a default, a count of rows, or a piece of a date.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any, Callable, Optional

from runtime.agent.hardware.parsers import tables
from tests.fuzz.truth import leaves

COUNTS = {("devices",), ("active",), ("infiniband",), ("gpus",), ("nics",), ("npus",), ("columns",)}
"""How many there are of what is told."""
RECKONED = {"ran_seconds", "ecc_uncorrectable", "rate_gbps", "mig_memory_sum_mib"}
"""May be made of several numbers in the text: without any number there, it must go."""
SCALES = (1.0, 2.0**10, 2.0**20, 2.0**-10, 2.0**-20)
"""Memory is told in MiB, whatever unit it is printed in."""
_UNITS = {"": 2.0**-20, "K": 2.0**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}

_NO_READING = re.compile(
    r"(?<!\d)\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d:\d\d(?:[.,]\d{2,9})?)?(?!\d)"
    r"|(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +\d{1,2} "
    r"\d\d:\d\d:\d\d(?!\d)(?: \d{4}(?!\d))?"
    r"|(?<![\w:])\d\d:\d\d:\d\d(?![\w:.])"
    r"|(?<![\w:])(?:[0-9A-Fa-f]{2,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b"
    r"|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
)
_NUMBER = re.compile(r"0[xX][0-9A-Fa-f]+|(\d+(?:[.,]\d+)?)(?:\s*([KMGT]?)i?B\b)?")

Value = tuple[tuple[str, ...], float]


def numbers(told: Any) -> list[Value]:
    """Those that must come out of the text."""
    return [
        (path, value)
        for path, value in leaves(told)
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        if path not in COUNTS
    ]


def lies(read: Callable[[str], dict[str, Any]], told: dict[str, Any], text: str, arguments: list[str]) -> list[str]:
    """Each number out of nothing; that it comes from where it stands is looked at for one of them, the same one for
    the same text. A tool asked for card 3 alone (``-i 3``) need not print the number again."""
    bare = "\n".join(tables.lines(text))
    asked = {float(number) for number in re.findall(r"\d+", " ".join(arguments))}
    printed = {number for match in _places(bare) for number in _meanings(match)} | asked
    values = numbers(told)
    found = [
        f"{'.'.join(path)} {value} is not in the text"
        for path, value in values
        if not RECKONED.intersection(path)
        and not any(_same(value, number, scale) for number in printed for scale in _scales(path))
    ]
    values = [(path, value) for path, value in values if _float(value) not in asked]
    if values and not found:
        path, value = values[zlib.crc32(bare.encode("utf-8", "replace")) % len(values)]
        if (path, value) in numbers(read(blotted(bare, path, value))):
            found.append(f"{'.'.join(path)} {value} is told when no such number is in the text")
    return found


def blotted(text: str, path: tuple[str, ...], value: float) -> str:
    """The text without a number, wherever and however it is written."""
    memory, made = path[-1].endswith("_mib"), not RECKONED.isdisjoint(path)
    if "ran_seconds" in path:
        return re.sub(r"\d", "?", text)  # it is the one that is made of dates
    unit_apart = re.search(r"\((?:KB|B|KiB)\)|bytes", text, re.IGNORECASE) is not None
    parts: list[str] = []
    end = 0
    for match in _places(text):
        scales: tuple[float, ...] = (1.0,)
        if memory and match[2] is not None:
            scales = (_UNITS[match[2].upper()], 1.0)
        elif memory and unit_apart:
            scales = SCALES
        if made or any(_same(value, number, scale) for number in _meanings(match) for scale in scales):
            parts += [text[end : match.start()], re.sub(r"\w", "?", match[0], count=len(match[1] or match[0]))]
            end = match.end()
    return "".join([*parts, text[end:]])


def _places(text: str) -> Iterator[re.Match[str]]:
    """All numbers but those in dates, addresses and UUIDs."""
    hidden = _NO_READING.sub(lambda match: "\x01" * len(match[0]), text)
    return _NUMBER.finditer(hidden)


def _meanings(match: re.Match[str]) -> set[float]:
    """``12,5`` is 12.5, or 12 and 5; and 12 or 13 to whom only whole numbers are of use."""
    if match[1] is None:
        return {float(int(match[0], 16)), 0.0} if len(match[0]) < 20 else set()
    whole = float(match[1].replace(",", "."))
    found = {whole, *(float(part) for part in re.split("[.,]", match[1]))}
    return found | {float(round(one)) for one in found if one < 2.0**63}


def _scales(path: tuple[str, ...]) -> tuple[float, ...]:
    return SCALES if path[-1].endswith("_mib") else (1.0,)


def _same(value: float, number: float, scale: float) -> bool:
    told = _float(value)
    if told is None:
        return False
    return abs(abs(told) - number * scale) <= (0.99999 if scale != 1 else 1e-9 * number)


def _float(value: float) -> Optional[float]:
    try:
        return float(value)
    except OverflowError:
        return None
