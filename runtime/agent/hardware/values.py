"""Numbers out of vendors' text. What cannot be read is None, never 0, and never an error."""

from __future__ import annotations

import math
import re
from typing import Optional

_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*(%|°?[A-Za-z]+|℃)?")


def number(text: Optional[str]) -> Optional[float]:
    """The number in a cell, with or without a unit (``%``, ``W``, ``°C``, ``℃``).

    ``[N/A]``, ``[Unknown Error]``, ``ERR!``, ``-``, an empty cell and every other word give None, and so does a comma:
    it may be a decimal point, a separator of thousands, or the end of the cell.
    """
    match = _NUMBER.fullmatch((text or "").strip())
    value = math.nan if match is None else float(match.group(1))
    return value if math.isfinite(value) else None


def measured(text: Optional[str], *units: str) -> Optional[float]:
    """A number with one of these units behind it; without, it was cut off."""
    return number(text) if (text or "").endswith(units) else None


def whole(text: Optional[str]) -> Optional[int]:
    """As :func:`number`, rounded to a whole number."""
    value = number(text)
    return None if value is None else round(value)


def ordinal(text: Optional[str]) -> Optional[int]:
    """A card's number, a process's: plain digits and not too many of them; None for everything else."""
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) else None


def word(text: Optional[str]) -> Optional[str]:
    """A name in a cell; None for the words that stand for "not known"."""
    cell = (text or "").strip()
    bare = cell.strip("[]").strip().lower()
    if bare in ("", "-", "n/a", "na", "err!", "not supported", "unknown error", "unknown", "not available"):
        return None
    return None if cell.startswith("[") and cell.endswith("]") else cell
