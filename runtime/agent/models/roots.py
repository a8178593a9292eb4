"""What is walked apart: each configured folder, and each file system that is mounted below one. Pure.

A mount whose server is gone hangs whoever enters it. Mounts are known from the kernel's own list (``mountinfo``, see
proc(5)), which hangs nobody, so that each gets a walk of its own and the others go around it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.protocol.paths import is_within

ALWAYS = "/data/models"
"""Looked at beside the configured folders."""

BY_DEFAULT = ("/data/heteroflow/model-cache", ALWAYS)
"""Nobody need have these: one that is not there is no fault."""

_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo: where it is seen, of which device (``major:minor``) and from which of its folders."""

    path: str
    device: str
    root: str


@dataclass(frozen=True)
class Root:
    """One walk: from ``path``, around the ``mounts`` below it. ``on`` is the mount that it lies on: what hangs one
    root hangs all that lie there. ``wanted``: that it is not there is a fault."""

    path: str
    mounts: tuple[str, ...] = ()
    on: str = "/"
    wanted: bool = False


def read_mounts(text: bytes) -> list[Mount]:
    """The lines of ``/proc/self/mountinfo``; of several mounts on one place the last covers the others."""
    found: dict[str, Mount] = {}
    for line in text.split(b"\n"):
        words = line.split(b" ")
        if len(words) >= 5:
            path = _plain(words[4])
            found.pop(path, None)
            found[path] = Mount(path, words[2].decode("ascii", "replace"), _plain(words[3]))
    return list(found.values())


def roots_of(folders: Sequence[str], mounts: Iterable[Mount]) -> list[Root]:
    """The walks that see everything below ``folders`` and :data:`ALWAYS` once each.

    What is inside another folder is not walked by itself, nor what is another place's second name by a bind mount.
    """
    known = list(mounts)
    wanted = dict.fromkeys(os.path.normpath(folder) for folder in (*folders, ALWAYS))
    tops = [folder for folder in wanted if not any(folder != other and is_within(folder, other) for other in wanted)]
    places = [*tops, *(mount.path for mount in known if any(_below(mount.path, top) for top in tops))]
    walked: list[tuple[str, Mount]] = []
    for place in sorted(places, key=lambda place: place.count("/")):
        where = _where(place, known)
        if not any(other.device == where.device and is_within(where.root, other.root) for _, other in walked):
            walked.append((place, where))
    found = []
    for place, where in walked:
        around = tuple(sorted(mount.path for mount in known if _below(mount.path, place)))
        found.append(Root(place, around, where.path, wanted=place in wanted and place not in BY_DEFAULT))
    return found


def _below(path: str, place: str) -> bool:
    return path != place and is_within(path, place)


def _where(place: str, mounts: Sequence[Mount]) -> Mount:
    """The mount that a path lies on, with the path's own folder on its device, when nothing on its way is a link."""
    around = max((mount for mount in mounts if is_within(place, mount.path)), key=lambda m: len(m.path), default=None)
    if around is None:
        return Mount("/", "", place)
    rest = place[len(around.path.rstrip("/")) :]
    return Mount(around.path, around.device, os.path.normpath(f"{around.root}/{rest}"))


def _plain(word: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), word))
