"""What is mounted where, as the kernel lists it, and what of the machine a mount shows. Pure but for reading."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from runtime.protocol.paths import is_within

KERNEL_KINDS = frozenset(
    ("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "configfs",
     "bpf", "pstore", "efivarfs", "mqueue", "nsfs", "binfmt_misc", "selinuxfs", "smackfs", "fusectl", "rpc_pipefs")
)  # fmt: skip
"""File systems that are doors into the kernel, not places for data."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mounted:
    """One mount: the part ``root`` of the file system ``device`` (major:minor, as the kernel numbers it) is seen
    at ``point``; ``kind`` is the file system's type."""

    device: str
    root: str
    point: str
    kind: str

    @property
    def shown(self) -> tuple[str, str]:
        """What is seen through it, wherever it is mounted."""
        return self.device, self.root


def mounted(pid: Union[int, str] = "self") -> list[Mounted]:
    """What the process sees, in the order of mounting; OSError when it is gone or not ours to look at."""
    return parse(Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape"))


def parse(text: str) -> list[Mounted]:
    """``/proc/PID/mountinfo``; lines of another shape are left out."""
    found = []
    for line in text.split("\n"):
        head, dash, tail = line.partition(" - ")
        words, kinds = head.split(" "), tail.split(" ")
        if dash and len(words) >= 6:
            found.append(Mounted(words[2], _plain(words[3]), _plain(words[4]), kinds[0]))
    return found


def at(path: str, mounts: Iterable[Mounted]) -> Optional[Mounted]:
    """The mount whose point is ``path`` itself, the topmost one."""
    return next((one for one in reversed(list(mounts)) if one.point == path), None)


def below(path: str, mounts: Iterable[Mounted]) -> list[Mounted]:
    """The mount at ``path`` and all that are in it."""
    return [one for one in mounts if is_within(one.point, path)]


def shown_at(path: str, mounts: Sequence[Mounted]) -> Optional[tuple[str, str]]:
    """Device and path in its file system of what lies at ``path`` (without links)."""
    around = [one for one in mounts if is_within(path, one.point)]
    if not around:
        return None
    top = max(reversed(around), key=lambda one: len(one.point))  # of equals the last, which covers the others
    inside = posixpath.relpath(path, top.point)
    return top.device, posixpath.normpath(posixpath.join(top.root, inside))


def reaches(shown: Iterable[Mounted], denied: Sequence[str], mounts: Sequence[Mounted]) -> Optional[str]:
    """What of the machine one of the mounts in ``shown`` lets see though it is in ``denied``; None: nothing.

    A part of a file system may be mounted in several places, so it is not the path that counts but what is seen:
    a bind mount of ``/etc`` below an allowed folder is ``/etc`` all the same.
    """
    places = [(place, found) for place in denied for found in (shown_at(place, mounts),) if found is not None]
    for one in shown:
        if one.kind in KERNEL_KINDS:
            return f"a file system of type {one.kind}"
        for place, (device, root) in places:
            if one.device == device and (is_within(one.root, root) or is_within(root, one.root)):
                return place
    return None


def _plain(word: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), word)
