"""What names tell: training steps, unfinished saves, and whether a name stays in its folder. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import product
from typing import Optional

LONGEST_SHOWN = 100
DEEPEST = 16
"""Folders below a checkpoint that are looked into."""

_STEP = re.compile(
    r"(?:.*[A-Za-z][-_.=]"  # a word and one separator: checkpoint-500, step_9, epoch=3-step=100
    r"|(?:.*[-_.=])?[A-Za-z]+"  # a word alone: global_step100, iter0000100
    r")?([0-9]{1,18})(?:\.ckpt)?"  # or nothing but the number
)
_SAYABLE = re.compile(r"[A-Za-z_.=-]{1,40}[0-9]{1,18}")
_UNFINISHED = re.compile(r"(?:.*[-_.])?(?:tmp|temp|partial|incomplete)(?:[-_.].*)?", re.IGNORECASE)


def step_of(name: str) -> Optional[int]:
    """The training step that a name ends in; None without a plain, non-negative number (``step_-5``, ``step_1e5``)."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def unfinished(name: str) -> bool:
    """Whether the name is one that programs give what they have not finished (``checkpoint-500.tmp``)."""
    return name.startswith(".") or _UNFINISHED.fullmatch(name) is not None


def is_plain(name: str) -> bool:
    """Whether this is the name of something right here: no way out of the folder, none into another."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable() and _is_text(name)


def parts_of(path: str) -> Optional[list[str]]:
    """A path's names, for a path that only goes down; None for any other."""
    parts = path.split("/")
    return parts if len(parts) <= DEEPEST and all(is_plain(part) for part in parts) else None


def said(name: str) -> str:
    """What a pointer holds, as far as it may be repeated: what looks like a checkpoint's name, and nothing else."""
    return name if _SAYABLE.fullmatch(name) else "something"


def shown(name: str) -> str:
    """A name as it can stand in a sentence, whatever is in it."""
    text = name if name.isprintable() and _is_text(name) else ascii(name)[1:-1]
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def first_gap(ranks: Collection[tuple[int, ...]]) -> Optional[tuple[int, ...]]:
    """The first one missing of a grid of ranks, each counted from 0 to the highest that is there; None: all there.

    All of them have the same number of coordinates, and there is at least one.
    """
    have = set(ranks)
    sizes = [max(column) + 1 for column in zip(*have)]
    return next((point for point in _grid(sizes, len(have)) if point not in have), None)


def _grid(sizes: list[int], have: int) -> Iterator[tuple[int, ...]]:
    """At most one point more than there are: that one is missing then, however large the grid."""
    for count, point in enumerate(product(*(range(size) for size in sizes))):
        yield point
        if count >= have:
            return


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8, as the file system's names may have
        return False
    return True
