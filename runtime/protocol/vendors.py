"""The names of the vendors whose cards are known, as nodes report them and tasks ask for them.

A name that is none of these is not refused: a newer agent may know one more.
"""

from __future__ import annotations

VENDORS = (
    "musa",
    "hygon",
    "cambricon",
    "biren",
    "ascend",
    "kunlun",
    "iluvatar",
    "nvidia",
    "metax",
    "enflame",
)
"""In the order of the detectors."""
VIRTUAL = "virtual"
"""Of cards without hardware; given only to tasks that name it."""
