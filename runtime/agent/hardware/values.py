"""Numbers out of vendors' text. What cannot be read is None, never 0, and never an error."""

from __future__ import annotations

import re
from typing import Optional

_NUMBER = re.compile(r"([+-]?\d+(?:[.,]\d+)?)\s*(%|[A-Za-z]+)?")


def number(text: Optional[str]) -> Optional[float]:
    """The number in a cell, with or without a unit; a comma counts as the decimal point.

    ``[N/A]``, ``[Unknown Error]``, ``ERR!``, ``-``, an empty cell and every other word give None.
    """
    match = _NUMBER.fullmatch((text or "").strip())
    return None if match is None else float(match.group(1).replace(",", "."))


def whole(text: Optional[str]) -> Optional[int]:
    """As :func:`number`, rounded to a whole number."""
    value = number(text)
    return None if value is None else round(value)


def word(text: Optional[str]) -> Optional[str]:
    """A name in a cell; None for the words that stand for "not known"."""
    cell = (text or "").strip()
    bare = cell.strip("[]").strip().lower()
    if bare in ("", "-", "n/a", "na", "err!", "not supported", "unknown error", "unknown", "not available"):
        return None
    return None if cell.startswith("[") and cell.endswith("]") else cell
