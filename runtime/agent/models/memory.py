"""What a walk remembers for the next one, so that only what changed is listed and read again.

A folder or file that changed in the same tick of the file system's clock in which it was looked at would look
unchanged ever after. One that is younger than :data:`SETTLED_NS` is therefore looked at once more.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional

from runtime.agent.models.integrity import Verdict

FORM = 1
SETTLED_NS = 2_000_000_000


class SeenFile(NamedTuple):
    """``mark`` is what the file was known by when it was judged: size, time of its last change, inode."""

    kind: str
    mark: tuple[int, int, int]
    verdict: Optional[Verdict]


@dataclass
class SeenFolder:
    """``mark``: time of the last change and inode; None when it has to be listed again."""

    mark: Optional[tuple[int, int]]
    folders: list[str] = field(default_factory=list)
    files: dict[str, SeenFile] = field(default_factory=dict)


@dataclass
class Memory:
    """Folders by their path below the root. ``pending`` were not reached; ``number`` counts the scans."""

    folders: dict[str, SeenFolder] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    number: int = 0


def mark_of(found: os.stat_result, now_ns: int) -> Optional[tuple[int, int]]:
    """A folder's mark, once it is old enough to be told from its next change."""
    return (found.st_mtime_ns, found.st_ino) if found.st_mtime_ns < now_ns - SETTLED_NS else None


def load(path: Path, root: str) -> Memory:
    """What the last walk of this root left; nothing where it cannot be used."""
    try:
        document = json.loads(path.read_bytes())
        if document["form"] != FORM or document["root"] != root:
            return Memory()
        folders = {name: _folder(row) for name, row in document["folders"].items()}
        return Memory(folders, list(document["pending"]), int(document["number"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Memory()


def save(path: Path, root: str, memory: Memory) -> None:
    """Write it beside, then rename: a walk that is killed leaves the memory of the one before. Raises OSError."""
    document = {
        "form": FORM,
        "root": root,
        "number": memory.number,
        "pending": memory.pending,
        "folders": {name: [folder.mark, folder.folders, folder.files] for name, folder in memory.folders.items()},
    }
    beside = path.with_suffix(".new")
    with beside.open("w", encoding="ascii") as file:
        json.dump(document, file, separators=(",", ":"))
    beside.replace(path)


def _folder(row: list[Any]) -> SeenFolder:
    mark, folders, files = row
    return SeenFolder(
        None if mark is None else (mark[0], mark[1]),
        folders,
        {name: SeenFile(kind, (at[0], at[1], at[2]), _verdict(verdict)) for name, (kind, at, verdict) in files.items()},
    )


def _verdict(row: Optional[list[Any]]) -> Optional[Verdict]:
    return None if row is None else Verdict(row[0], row[1], tuple((name, least) for name, least in row[2]))
