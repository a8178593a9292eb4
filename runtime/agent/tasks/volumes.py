"""The volume fence: which host paths a task may see.

Two steps. The text is checked and normalised first, by whole path components. Then the path is walked on the
file system, one component at a time from directory handle to directory handle without following links by
itself; a link's target goes through the same walk. What comes out is an open handle, a path without links, and
the identity (device and inode) of what lies there. A name can be given to something else at any moment, a handle
cannot: what is mounted is the handle (see ``pins``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Optional

from runtime.protocol.paths import is_within, path_fault, target_fault
from runtime.protocol.tasks import Volume

ALWAYS_DENIED = (
    "/etc", "/proc", "/sys", "/dev", "/boot", "/root", "/run", "/var/run", "/usr", "/bin", "/sbin",
    "/var/lib/docker", "/var/lib/containerd", "/var/lib/heterofleet", "/var/lib/systemd", "/var/spool",
    "/opt/heterofleet",
)  # fmt: skip
"""With everything in them, and with every folder that holds one of them (``/`` holds them all)."""

LINKS_LIMIT = 40
FOLDER_MODE = 0o755
_OPEN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_SOURCE = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}

Owner = Optional[tuple[int, int]]
"""uid and gid of a folder that is made; None: as the folder around it."""


class VolumeRejected(Exception):
    """The volume is not allowed; the message is for the task's record."""


@dataclass(frozen=True)
class Source:
    """What lies at a path: the path without links, and which file system object it is."""

    path: str
    device: int
    inode: int


@dataclass(frozen=True)
class Opened:
    """A source that went through the fence, held open: ``handle`` is it, whatever becomes of its name."""

    source: Source
    handle: int
    folder: bool


@dataclass(frozen=True)
class Fence:
    """Allowed prefixes and denied places, as configured; what is always denied is added."""

    allow: Sequence[str]
    deny: Sequence[str] = ()

    def admit(self, volume: Volume, owner: Owner = None) -> Source:
        """Check one volume; makes its last folder when it says ``create``. Raises VolumeRejected."""
        with self.opened(volume, owner) as found:
            return found.source

    @contextmanager
    def opened(self, volume: Volume, owner: Owner = None) -> Iterator[Opened]:
        """The same, with what was found held open until the block ends."""
        check_target(volume.container)
        wanted = normalise(volume.host)
        self._refuse_denied(wanted, volume.host)
        if not any(is_within(wanted, prefix) for prefix in self._allowed):
            raise VolumeRejected(f"volume {volume.host!r} is outside what this node allows ({self._words})")
        handles: list[int] = []
        try:
            path = self._walk(wanted, volume, owner, handles)
            self._refuse_outside(path, volume.host)
            found = os.fstat(handles[-1])
            _refuse_kind(found, volume.host)
            yield Opened(Source(path, found.st_dev, found.st_ino), handles[-1], stat.S_ISDIR(found.st_mode))
        finally:
            for handle in handles:
                os.close(handle)

    @cached_property
    def denied(self) -> tuple[str, ...]:
        """Every denied place that is there, without links."""
        places = (*ALWAYS_DENIED, *self.deny)
        return tuple(sorted({os.path.realpath(place) for place in places if os.path.lexists(place)}))

    @cached_property
    def _denied_objects(self) -> dict[tuple[int, int], str]:
        """The denied places themselves: one may be seen under another name, by a mount or by a change of case."""
        found = {identity_of(place): place for place in ("/", *self.denied)}
        return {identity: place for identity, place in found.items() if identity is not None}

    @cached_property
    def _allowed(self) -> tuple[str, ...]:
        return tuple(os.path.normpath(prefix) for prefix in self.allow)

    @property
    def _words(self) -> str:
        return ", ".join(self.allow) or "no folder at all"

    def _refuse_denied(self, path: str, said: str) -> None:
        for place in (*ALWAYS_DENIED, *(os.path.normpath(place) for place in self.deny), *self.denied):
            if is_within(path, place) or is_within(place, path):
                raise VolumeRejected(f"volume {said!r} is never allowed: it reaches {place}")
        first = path.split("/")[1]
        if first.startswith("lib"):
            raise VolumeRejected(f"volume {said!r} is never allowed: it reaches /{first}")

    def _refuse_outside(self, path: str, said: str) -> None:
        """``path`` is without links; an allowed prefix may be one itself."""
        fault = path_fault(path)
        if fault is not None:
            raise VolumeRejected(f"volume {said!r} leads to a place whose path {fault}: {shorten(path)}")
        self._refuse_denied(path, said)
        if not any(is_within(path, prefix) for one in self._allowed for prefix in (one, os.path.realpath(one))):
            raise VolumeRejected(f"volume {said!r} leads to {path}, outside what this node allows ({self._words})")

    def _walk(self, path: str, volume: Volume, owner: Owner, handles: list[int]) -> str:
        """Open one component after the other; the path without links. ``handles`` gets all that is held open."""
        todo = [part for part in path.split("/") if part]
        done: list[str] = []
        handles.append(os.open("/", _OPEN | os.O_DIRECTORY))
        links = 0
        while todo:
            name = todo.pop(0)
            if name == "..":
                if done:
                    done.pop()
                    os.close(handles.pop())
                continue
            try:
                handle = _open(name, handles[-1])
            except FileNotFoundError:
                if todo or not volume.create:
                    raise VolumeRejected(f"mount source does not exist: {volume.host}") from None
                self._refuse_outside("/" + "/".join([*done, name]), volume.host)
                handle = _make_folder(name, handles[-1], volume.host, owner)
            except OSError as error:
                raise VolumeRejected(f"mount source {volume.host} cannot be reached: {error.strerror}") from None
            handles.append(handle)
            found = os.fstat(handle)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                target = os.readlink("", dir_fd=handle)
                os.close(handles.pop())
                if links > LINKS_LIMIT:
                    raise VolumeRejected(f"mount source {volume.host} has too many links in it")
                if target.startswith("/"):
                    while len(handles) > 1:
                        os.close(handles.pop())
                    done.clear()
                todo[:0] = [part for part in target.split("/") if part not in ("", ".")]
                continue
            place = self._denied_objects.get((found.st_dev, found.st_ino))
            if place is not None:
                raise VolumeRejected(f"volume {volume.host!r} is never allowed: it goes through {place}")
            done.append(name)
        return "/" + "/".join(done)


def _open(name: str, folder: int) -> int:
    """A handle on what ``name`` is in ``folder``, links included. Asked for as a folder first: only then does what is
    mounted on demand get mounted."""
    try:
        return os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=folder)
    except NotADirectoryError:
        return os.open(name, _OPEN, dir_fd=folder)


def _refuse_kind(found: os.stat_result, said: str) -> None:
    kind = _NO_SOURCE.get(stat.S_IFMT(found.st_mode))
    if kind is not None:
        raise VolumeRejected(f"mount source {said} is {kind}, neither a folder nor a file")
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise VolumeRejected(
            f"mount source {said} is a file with {found.st_nlink} names (hard links), and nobody can tell whether "
            "one of the others is in a denied place; copy it, or mount the folder around it"
        )


def _make_folder(name: str, parent: int, said: str, owner: Owner) -> int:
    """A handle on the new folder ``name`` in ``parent``. One that another task makes at the same time is as good."""
    try:
        made = True
        try:
            os.mkdir(name, FOLDER_MODE, dir_fd=parent)
        except FileExistsError:
            made = False
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        if made:
            try:
                _give(handle, parent, said, owner)
            except BaseException:
                os.close(handle)
                raise
    except OSError as error:
        raise VolumeRejected(f"mount source {said} could not be made: {error.strerror}") from None
    return handle


def _give(handle: int, parent: int, said: str, owner: Owner) -> None:
    """To its owner, by the handle: what has taken the name's place in the meantime is given to nobody."""
    found, around = os.fstat(handle), os.fstat(parent)
    if found.st_uid != os.geteuid() or os.listdir(handle):
        raise VolumeRejected(f"mount source {said} was swapped while it was made")
    os.fchown(handle, *(owner if owner is not None else (around.st_uid, around.st_gid)))


def normalise(path: str) -> str:
    """The absolute path with ``.``, ``..`` and repeated slashes taken out by text alone; VolumeRejected when the
    text names no place."""
    fault = path_fault(path)
    if fault is not None:
        raise VolumeRejected(f"a volume's host path {fault}: {shorten(path)}")
    return "/" + os.path.normpath(path).lstrip("/")


def check_target(path: str) -> None:
    """The path inside the container; VolumeRejected when no volume may be there."""
    fault = target_fault(path)
    if fault is not None:
        raise VolumeRejected(f"a volume's path in the container must be absolute and below /; it {fault}: "
                             f"{shorten(path)}")  # fmt: skip


def shorten(path: str) -> str:
    """As it is shown in a sentence: quoted, whatever is in it, and not longer than a line or two."""
    shown = ascii(path) if not path.isprintable() else repr(path)
    return shown if len(shown) <= 200 else f"{shown[:197]}..."


def numeric_owner(user: Optional[str]) -> Owner:
    """uid and gid of a task's ``user`` when it is given in numbers (``1000`` or ``1000:1000``)."""
    if not user:
        return None
    uid, _, gid = user.partition(":")
    if not _is_id(uid) or (gid and not _is_id(gid)):
        return None
    return int(uid), int(gid or uid)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**32 - 1


def identity_of(path: str) -> Optional[tuple[int, int]]:
    """(device, inode) of what lies at ``path`` now, following no link at its end; None when nothing does."""
    try:
        found = Path(path).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
