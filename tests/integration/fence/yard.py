"""A place to play in: an allowed folder with something good in it, and traps around it that notice a reader."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from runtime.agent.tasks.pins import Pins
from runtime.agent.tasks.volumes import Fence

GOOD = "this is what the task was given\n"
TRAP = "this is what no task may ever see\n"
_OPENED, _READ = 0x20, 0x1
_EVENT = struct.Struct("iIII")

libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Tells whether anybody opened or read one of the files, by whatever name and from whatever container."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._handle >= 0
        self._paths = {}
        for path in paths:
            watch = libc.inotify_add_watch(self._handle, os.fsencode(path), _OPENED | _READ)
            assert watch >= 0, (path, os.strerror(ctypes.get_errno()))
            self._paths[watch] = path

    def rung(self) -> list[str]:
        """Who was touched since the last question."""
        found: list[str] = []
        while True:
            try:
                data = os.read(self._handle, 65536)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                found.append(f"{self._paths[watch]}: {'opened' if mask & _OPENED else 'read'}")
                at += _EVENT.size + length

    def close(self) -> None:
        os.close(self._handle)


class Yard:
    """``data`` is what the node allows, ``data/denied`` is denied in it, ``out`` is outside."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data, self.out, self.denied = root / "data", root / "out", root / "data" / "denied"
        self.good = self.data / "good"
        self.places = root / "places"
        for folder in (self.good, self.denied, self.out):
            folder.mkdir(parents=True)
        (self.good / "marker").write_text(GOOD)
        for folder in (self.denied, self.out):
            (folder / "marker").write_text(TRAP)
        self.alarm = Alarm([self.denied / "marker", self.out / "marker"])
        self._mounted: list[str] = []
        self._undo = contextlib.ExitStack()
        self._undo.callback(self._let_go)

    @property
    def fence(self) -> Fence:
        return Fence([str(self.data)], [str(self.denied)])

    @property
    def pins(self) -> Pins:
        return Pins(self.places)

    def mount(self, *words: object) -> None:
        """mount(8) for this test; the last word is the mount point. A part of the machine is mounted read-only: who
        clears up after a run that was killed must not clear that up."""
        subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)
        if "--bind" in words:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(words[-1])], check=True, capture_output=True)
        subprocess.run(["mount", "--make-private", str(words[-1])], check=True, capture_output=True)
        self._mounted.append(str(words[-1]))
        self._undo.callback(subprocess.run, ["umount", "-R", "-l", str(words[-1])], capture_output=True)

    def close(self) -> None:
        self._undo.close()
        self.alarm.close()

    def names(self) -> list[str]:
        """All names in the yard, but for its places and what is mounted in it."""
        found: list[str] = []
        for folder, folders, files in os.walk(self.root):
            found += [f"{folder}/{name}" for name in (*folders, *files) if not name.startswith((".places", "places"))]
            folders[:] = [name for name in folders if f"{folder}/{name}" not in (*self._mounted, str(self.places))]
        return sorted(found)

    def held(self) -> list[str]:
        """What is mounted at the places, by the kernel's list."""
        points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return sorted(point for point in points if point.startswith(f"{self.places}/"))

    def _let_go(self) -> None:
        for point in reversed(self.held()):
            subprocess.run(["mount", "--make-rprivate", point], capture_output=True)
            subprocess.run(["umount", "-l", point], capture_output=True)
        subprocess.run(["umount", "-l", str(self.places)], capture_output=True)


@contextlib.contextmanager
def yard_at(root: Path) -> Iterator[Yard]:
    yard = Yard(root)
    try:
        yield yard
    finally:
        yard.close()
