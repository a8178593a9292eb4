"""What a path may look like in a task, by its text alone: the server's answer and the node's check are one.

Nothing is decoded or expanded: ``%2e``, ``~`` and ``$HOME`` are names like any other.
"""

from __future__ import annotations

import posixpath
import unicodedata
from typing import Optional

LONGEST_PATH = 4095
LONGEST_NAME = 255
"""In bytes, as Linux counts them."""

ENGINE_PLACES = ("/proc", "/sys", "/dev")
"""Places in a container that belong to the engine."""


def path_fault(path: str) -> Optional[str]:
    """What keeps the text from naming a place from the root on, in words that follow "it"; None: nothing."""
    if not path:
        return "is empty"
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in path):
        return "has a control character or a line break"
    try:
        raw = path.encode()
    except UnicodeEncodeError:
        return "has a part that is not UTF-8 text"
    if not path.startswith("/"):
        return "is relative"
    if len(raw) > LONGEST_PATH:
        return f"is longer than {LONGEST_PATH} bytes"
    if any(len(name) > LONGEST_NAME for name in raw.split(b"/")):
        return f"has a name longer than {LONGEST_NAME} bytes"
    return None


WANTED = f"an absolute path without '..' and control characters (at most {LONGEST_PATH} bytes, {LONGEST_NAME} a name)"
WANTED_TARGET = f"{WANTED}, below the root and not in " + ", ".join(ENGINE_PLACES)


def target_fault(path: str) -> Optional[str]:
    """The same for the place of a volume in its container: below the root, not up again, not the engine's own."""
    fault = path_fault(path)
    if fault is not None:
        return fault
    if ".." in path.split("/"):
        return "has '..' in it"
    plain = target_name(path)
    if plain == "/":
        return "is the root"
    for place in ENGINE_PLACES:
        if is_within(plain, place):
            return f"is in {place}, which the engine makes itself"
    return None


def target_name(path: str) -> str:
    """One spelling for one place: without repeated slashes, ``.`` and a slash at the end."""
    return "/" + posixpath.normpath(path).lstrip("/") if path else path


def is_within(path: str, place: str) -> bool:
    """Whether ``path`` is ``place`` or below it, by whole components; both without ``.`` and ``..``."""
    return path == place or path.startswith(place.rstrip("/") + "/")
