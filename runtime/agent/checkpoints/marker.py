"""The marker ``HETEROFLEET_COMPLETE.json``: any program can write it, when all its files are there.

``{"step": 100, "name": "after-warmup", "files": [{"path": "weights.bin", "size": 123}]}``: paths go down from the
marker's own folder, sizes are in bytes. In a folder of its own it speaks for that folder; in the folder of all
checkpoints, for what ``name`` is there (else for the folder itself).
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.agent.checkpoints.files import is_count, read_json
from runtime.agent.checkpoints.folder import Folder
from runtime.agent.checkpoints.names import shown
from runtime.agent.checkpoints.verdict import Incomplete

NAME = "marker"
MARKER = "HETEROFLEET_COMPLETE.json"


@dataclass(frozen=True)
class Marked:
    """What a marker says; ``files`` are paths with sizes in bytes."""

    step: int
    name: str
    files: tuple[tuple[str, int], ...]


def read(folder: Folder) -> Marked:
    """Raises Incomplete."""
    value = read_json(folder, MARKER)
    if not isinstance(value, dict):
        raise Incomplete(f"{MARKER} is no object")
    step, name, files = value.get("step"), value.get("name"), value.get("files")
    if not isinstance(step, int) or not is_count(step):
        raise Incomplete(f"{MARKER} has no step that is a plain number")
    if not isinstance(name, str):
        raise Incomplete(f"{MARKER} has no name")
    if not isinstance(files, list) or not files:
        raise Incomplete(f"{MARKER} names no files")
    found = []
    for entry in files:
        path, size = (entry.get("path"), entry.get("size")) if isinstance(entry, dict) else (None, None)
        if not isinstance(path, str) or not isinstance(size, int) or not is_count(size):
            raise Incomplete(f"{MARKER} has a file without path and size")
        found.append((path, size))
    return Marked(step, name, tuple(found))


def judge(folder: Folder, marked: Marked) -> None:
    """Raises Incomplete."""
    for path, size in marked.files:
        found = folder.size(path, empty=size == 0)
        if found != size:
            raise Incomplete(f"{shown(path)} has {found} bytes, {MARKER} says {size}")
