"""When a node's vendors are looked for again. Every round it costs two file stamps and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Optional

LOOK_AGAIN_EVERY = 12
"""At least once in this many rounds of the inventory (a minute)."""

DEVICES = (Path("/dev"), Path("/dev/dri"))
"""Folders whose time changes when a driver makes its device files, whatever their names."""

Stamps = tuple[Optional[int], ...]


def device_stamps() -> Stamps:
    return tuple(map(_changed_at, DEVICES))


class Looks:
    """Ask :meth:`due` once a round, and tell by :meth:`looked` what a look has brought.

    A vendor that is here and does not answer is asked again after 1, 2, 4, 8, then 12 rounds: a driver that is being
    loaded takes seconds, one that is broken stays so. New device files are a reason to look at once.
    """

    def __init__(self, stamps: Callable[[], Stamps] = device_stamps) -> None:
        self._stamps = stamps
        self._seen: Optional[Stamps] = None
        self._left = 0
        self._pause = 1

    def due(self) -> bool:
        now = self._stamps()
        changed, self._seen = self._seen is not None and now != self._seen, now
        self._left -= 1
        if changed:
            self._pause = 1
        return changed or self._left <= 0

    def looked(self, *, broken: bool) -> None:
        """``broken``: a vendor is here and does not answer."""
        self._left = self._pause if broken else LOOK_AGAIN_EVERY
        self._pause = min(2 * self._pause, LOOK_AGAIN_EVERY) if broken else 1


def _changed_at(folder: Path) -> Optional[int]:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return None
