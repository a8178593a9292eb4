"""The volume fence: which host paths a task may see.

Two steps. The text is checked and normalised first, by whole path components. Then the path is walked on the
file system, one component at a time from directory handle to directory handle without following links by
itself; a link's target goes through the same walk. What comes out is a path without links, and the identity
(device and inode) of what lies there, to be compared again after create and after start.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

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


class VolumeRejected(Exception):
    """The volume is not allowed; the message is for the task's record."""


@dataclass(frozen=True)
class Source:
    """What lies at a path: the path without links, and which file system object it is."""

    path: str
    device: int
    inode: int


@dataclass(frozen=True)
class Fence:
    """Allowed prefixes and denied places, as configured; what is always denied is added."""

    allow: Sequence[str]
    deny: Sequence[str] = ()

    def admit(self, volume: Volume, owner: Optional[tuple[int, int]] = None) -> Source:
        """Check one volume; makes its last folder when it says ``create`` (owned by ``owner`` as uid and gid,
        else as the folder around it). Raises VolumeRejected."""
        check_target(volume.container)
        wanted = normalise(volume.host)
        if not any(is_within(wanted, prefix) for prefix in self._allowed()):
            raise VolumeRejected(f"volume {volume.host!r} is outside what this node allows ({', '.join(self.allow)})")
        self._refuse_denied(wanted, volume.host)
        source = self._walk(wanted, volume, owner)
        if not any(is_within(source.path, prefix) for prefix in self._allowed(resolved=True)):
            raise VolumeRejected(
                f"volume {volume.host!r} leads to {source.path}, outside what this node allows "
                f"({', '.join(self.allow)})"
            )
        self._refuse_denied(source.path, volume.host)
        return source

    def _allowed(self, resolved: bool = False) -> list[str]:
        prefixes = [os.path.normpath(prefix) for prefix in self.allow]
        return [*prefixes, *(os.path.realpath(prefix) for prefix in prefixes)] if resolved else prefixes

    def _refuse_denied(self, path: str, said: str) -> None:
        for place in (*ALWAYS_DENIED, *self.deny):
            if is_within(path, place) or is_within(place, path):
                raise VolumeRejected(f"volume {said!r} is never allowed: it reaches {place}")
        first = path.split("/")[1]
        if first.startswith("lib"):
            raise VolumeRejected(f"volume {said!r} is never allowed: it reaches /{first}")

    def _walk(self, path: str, volume: Volume, owner: Optional[tuple[int, int]]) -> Source:
        todo = [part for part in path.split("/") if part]
        done: list[str] = []
        handles = [os.open("/", _OPEN | os.O_DIRECTORY)]
        links = 0
        try:
            while todo:
                name = todo.pop(0)
                if name == "..":
                    if done:
                        done.pop()
                        os.close(handles.pop())
                    continue
                try:
                    handle = os.open(name, _OPEN, dir_fd=handles[-1])
                except FileNotFoundError:
                    if todo or not volume.create:
                        raise VolumeRejected(f"mount source does not exist: {volume.host}") from None
                    handle = self._create(name, handles[-1], "/" + "/".join([*done, name]), volume, owner)
                except (NotADirectoryError, PermissionError, OSError) as error:
                    raise VolumeRejected(f"mount source {volume.host} cannot be reached: {error.strerror}") from None
                mode = os.fstat(handle).st_mode
                if stat.S_ISLNK(mode):
                    links += 1
                    target = os.readlink("", dir_fd=handle)
                    os.close(handle)
                    if links > LINKS_LIMIT:
                        raise VolumeRejected(f"mount source {volume.host} has too many links in it")
                    if target.startswith("/"):
                        while len(handles) > 1:
                            os.close(handles.pop())
                        done.clear()
                    todo[:0] = [part for part in target.split("/") if part not in ("", ".")]
                    continue
                handles.append(handle)
                done.append(name)
            found = os.fstat(handles[-1])
            if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
                raise VolumeRejected(f"mount source {volume.host} is neither a folder nor a file")
            return Source("/" + "/".join(done), found.st_dev, found.st_ino)
        finally:
            for handle in handles:
                os.close(handle)

    def _create(self, name: str, parent: int, path: str, volume: Volume, owner: Optional[tuple[int, int]]) -> int:
        """Make the last folder, unless the place that the links led to is outside."""
        if not any(is_within(path, prefix) for prefix in self._allowed(resolved=True)):
            raise VolumeRejected(f"volume {volume.host!r} leads to {path}, outside what this node allows")
        self._refuse_denied(path, volume.host)
        try:
            os.mkdir(name, FOLDER_MODE, dir_fd=parent)
            handle = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=parent)
            around = os.fstat(parent)
            uid, gid = owner if owner is not None else (around.st_uid, around.st_gid)
            os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            raise VolumeRejected(f"mount source {volume.host} could not be made: {error.strerror}") from None
        return handle


def normalise(path: str) -> str:
    """The absolute path with ``.``, ``..`` and repeated slashes taken out by text alone; VolumeRejected when it is
    empty, relative or has control characters. Nothing is decoded: ``%2e`` is a literal name."""
    if not path:
        raise VolumeRejected("a volume's host path is empty")
    if any(ord(char) < 32 or ord(char) == 127 for char in path):
        raise VolumeRejected(f"a volume's host path has a control character: {path!r}")
    if not path.startswith("/"):
        raise VolumeRejected(f"a volume's host path is relative: {path!r}")
    return "/" + os.path.normpath(path).lstrip("/")


def check_target(path: str) -> None:
    """The path inside the container: absolute, not the root, no ``..``, no control characters."""
    parts = path.split("/")
    if (
        not path.startswith("/")
        or ".." in parts
        or not any(part not in ("", ".") for part in parts)
        or any(ord(char) < 32 or ord(char) == 127 for char in path)
    ):
        raise VolumeRejected(f"a volume's path in the container must be absolute and below /: {path!r}")


def is_within(path: str, place: str) -> bool:
    """Whether ``path`` is ``place`` or below it, by whole components; both normalised."""
    return path == place or path.startswith(place.rstrip("/") + "/")


def numeric_owner(user: Optional[str]) -> Optional[tuple[int, int]]:
    """uid and gid of a task's ``user`` when it is given in numbers (``1000`` or ``1000:1000``)."""
    if not user:
        return None
    uid, _, gid = user.partition(":")
    if not uid.isdigit() or (gid and not gid.isdigit()):
        return None
    return int(uid), int(gid or uid)


def identity_of(path: str) -> Optional[tuple[int, int]]:
    """(device, inode) of what lies at ``path`` now, following no link at its end; None when nothing does."""
    try:
        found = Path(path).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
