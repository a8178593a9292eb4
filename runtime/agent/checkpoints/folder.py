"""A folder by its handle: what is in it, without following links, without opening what is no plain file.

Every name is resolved against an open directory, so a folder that is moved or replaced while it is looked at cannot
lead the look elsewhere. What was looked at is remembered: :meth:`Folder.settle` says whether it is still the same.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Callable, Optional, Union

from runtime.agent.checkpoints.names import is_plain, parts_of, shown
from runtime.agent.checkpoints.verdict import Incomplete

MIB = 1 << 20
LINE_LIMIT = 4096
LINK = "is a link, and links are not followed"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ANY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
          stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}  # fmt: skip
_OF_THE_CANDIDATE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EIO, errno.ENXIO)
"""Errors that tell something of the one file. Any other is about the file system or this process, and says nothing
of any checkpoint."""


Identity = tuple[int, int, int, int]
"""Device, inode, size and time of the last change of what lies at a name."""


class GivenUp(Exception):
    """The look as a whole takes more than it may; the message says of what."""


@dataclass
class Budget:
    """What one look may take: names listed, bytes read, seconds. ``changed``: something did while it was looked at."""

    entries: int = 500_000
    read_bytes: int = 256 * MIB
    seconds: float = 60.0
    clock: Callable[[], float] = time.monotonic
    changed: bool = False

    def __post_init__(self) -> None:
        self._end = self.clock() + self.seconds
        self._entries = self._bytes = 0

    def spend(self, entries: int = 0, read_bytes: int = 0) -> None:
        """Raises GivenUp."""
        self._entries += entries
        self._bytes += read_bytes
        if self._entries > self.entries:
            raise GivenUp(f"more than {self.entries} names would have to be looked at")
        if self._bytes > self.read_bytes:
            raise GivenUp(f"more than {self.read_bytes // MIB} MiB would have to be read")
        if self.clock() > self._end:
            raise GivenUp(f"it would take more than {self.seconds:g} s")


class Folder:
    """An open directory; ``close`` (or a ``with``) closes it and what was opened through it.

    Methods raise Incomplete for what is missing, of another kind or not readable, and OSError when nothing can be
    said (a file system that has gone away). Of the folders in it one is open at a time: the last that was asked for.
    """

    def __init__(self, handle: int, budget: Budget, inside: Optional[Folder] = None, prefix: str = "") -> None:
        """``inside``: the folder around it. ``prefix``: its path from the candidate's folder, ending in a slash."""
        self._handle = handle
        self._budget = budget
        self._is_root = inside is None
        self._prefix = prefix
        # What a candidate's files were is remembered in one place for all folders of the candidate.
        self._seen: dict[str, Identity] = inside._seen if inside is not None and not inside._is_root else {}
        self._kinds: Optional[dict[str, str]] = None
        self._open: Optional[tuple[str, Folder]] = None

    @classmethod
    def at(cls, start: Union[int, str], inside: str, budget: Budget) -> Folder:
        """``inside`` (a path that only goes down, or nothing) below a folder: its handle (O_PATH will do), or its path.

        Raises Incomplete and OSError.
        """
        parts = [part for part in inside.split("/") if part not in ("", ".")]
        if not all(is_plain(part) for part in parts):
            raise Incomplete("is not a path that only goes down")
        here = os.open(".", _FOLDER, dir_fd=start) if isinstance(start, int) else os.open(start, _FOLDER)
        for part in parts:
            try:
                inner = os.open(part, _FOLDER, dir_fd=here)
            finally:
                os.close(here)
            here = inner
        return cls(here, budget)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        self.leave()
        os.close(self._handle)

    # Names

    @property
    def kinds(self) -> dict[str, str]:
        """``file``, ``folder``, ``link`` or ``other`` by name, as listed once."""
        if self._kinds is None:
            kinds = {}
            with self._in_words(""), os.scandir(self._handle) as entries:
                for entry in entries:
                    self._budget.spend(entries=1)
                    kinds[entry.name] = _kind(entry)
            self._kinds = kinds
        return self._kinds

    def folders(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind == "folder"]

    def has(self, name: str) -> bool:
        """Whether there is a plain file of that name now, without listing the folder."""
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=self._handle, follow_symlinks=False).st_mode)
        except OSError as error:
            if error.errno in _OF_THE_CANDIDATE:
                return False
            raise

    def holds(self, folder: str, name: str) -> bool:
        """Whether a folder in this one has a plain file of that name; what ``sub`` has opened stays open."""
        self._budget.spend(entries=1)
        try:
            with self._in_words(folder):
                handle = os.open(folder, _FOLDER, dir_fd=self._handle)
        except Incomplete:
            return False
        with Folder(handle, self._budget, self) as inside:
            return inside.has(name)

    def sub(self, name: str) -> Folder:
        """The folder ``name`` in this one; closed when another is asked for."""
        if self._open is not None and self._open[0] == name:
            return self._open[1]
        self.leave()
        self._budget.spend(entries=1)
        with self._in_words(name):
            handle = os.open(name, _FOLDER, dir_fd=self._handle)
        found = Folder(handle, self._budget, self, "" if self._is_root else f"{self._prefix}{name}/")
        self._open = name, found
        return found

    def leave(self) -> None:
        """Close the folder that ``sub`` gave."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    # Files

    def size(self, path: str, *, empty: bool = False) -> int:
        """Bytes of the plain file at a path that only goes down; ``empty``: there need not be any."""
        folder, name = self._down(path)
        return folder._size(name, empty)

    def read(self, name: str, limit: int) -> bytes:
        """All of a file; Incomplete when it is longer than ``limit`` bytes."""
        size = self._size(name)
        if size > limit:
            raise Incomplete(f"{self._path(name)} has {size} bytes, more than are read ({limit})")
        with self.opened(name) as file:
            chunks = []
            while len(chunk := os.read(file, MIB)) > 0:
                self._budget.spend(read_bytes=len(chunk))
                chunks.append(chunk)
                if sum(map(len, chunks)) > limit:
                    break
        data = b"".join(chunks)
        if len(data) != size:
            self._budget.changed = True
            raise Incomplete(f"{self._path(name)} changes while it is looked at")
        return data

    def line(self, name: str) -> str:
        """The one word or name that a pointer file holds, without the white space around it."""
        text = self.read(name, LINE_LIMIT).decode("utf-8", "replace").strip()
        if not text:
            raise Incomplete("is empty")
        return text

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """A handle for reading; what is opened is the plain file that was found, and nothing else ever is."""
        folder, name = self._down(path)
        with self._in_words(path):
            found = os.open(name, _ANY, dir_fd=folder._handle)
            try:
                _refuse_kind(os.fstat(found), folder._path(name))
                file = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            finally:
                os.close(found)
        try:
            with self._in_words(path):
                yield file
        finally:
            os.close(file)

    def settle(self) -> None:
        """Raises Incomplete when a file that was looked at is not what it was."""
        for path, before in list(self._seen.items()):
            folder, name = self._down(path)
            with folder._in_words(name):
                now = _identity(os.stat(name, dir_fd=folder._handle, follow_symlinks=False))
            if now != before:
                self._budget.changed = True
                raise Incomplete(f"{shown(path)} changes while it is looked at: a save may be under way")

    def _size(self, name: str, empty: bool = False) -> int:
        self._budget.spend(entries=1)
        with self._in_words(name):
            found = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        _refuse_kind(found, self._path(name))
        if found.st_size == 0 and not empty:
            raise Incomplete(f"{self._path(name)} is empty")
        self._seen.setdefault(self._prefix + name, _identity(found))
        return found.st_size

    def _down(self, path: str) -> tuple[Folder, str]:
        parts = parts_of(path)
        if parts is None:
            raise Incomplete("refers to a file outside its own folder")
        folder = self
        for part in parts[:-1]:
            folder = folder.sub(part)
        return folder, parts[-1]

    def _path(self, name: str) -> str:
        return shown(self._prefix + name)

    @contextmanager
    def _in_words(self, name: str) -> Iterator[None]:
        """``name`` is what is asked about; empty: the folder itself."""
        try:
            yield
        except OSError as error:
            own = error.errno in _OF_THE_CANDIDATE and not (self._is_root and not name and error.errno == errno.EIO)
            if not own:
                raise
            path = self._path(name) if name else "its folder"
            if error.errno == errno.ENOENT:
                raise Incomplete(f"{path} is missing") from None
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise Incomplete(f"{path} {self._no_folder(name)}") from None
            raise Incomplete(f"{path} cannot be read ({os.strerror(error.errno or 0)})") from None

    def _no_folder(self, name: str) -> str:
        try:
            mode = os.stat(name, dir_fd=self._handle, follow_symlinks=False).st_mode
        except OSError:
            return "is not a folder"
        return LINK if stat.S_ISLNK(mode) else "is not a folder"


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _refuse_kind(found: os.stat_result, said: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise Incomplete(f"{said} {LINK}")
    if not stat.S_ISREG(found.st_mode):
        raise Incomplete(f"{said} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'something else')}, not a file")


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
