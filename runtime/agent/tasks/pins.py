"""Volumes held in place: what the fence let through, mounted where nobody but root can exchange it.

Docker resolves a mount's source by its name, at every start. Between the check and the start somebody could put a
link in its place. So the handle that the check ended with is bind-mounted to a private place, and that place is
what Docker gets. The place is named after the claim: whoever wants to know whether it is still needed asks the
journal and the engine.

Nothing propagates from here: the places lie on a private mount, so that no other mount namespace gets a copy, and
every pin is made a slave (what the host mounts below the folder comes here) and private before it goes (what is
unmounted here is not unmounted there). Nothing is ever deleted through a pin: a place is unmounted, then its
empty mount point is removed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Optional

from runtime.agent.tasks import mounts
from runtime.agent.tasks.records import Key
from runtime.agent.tasks.volumes import Fence, Opened, Owner, Source, VolumeRejected, identity_of
from runtime.protocol.tasks import Volume

log = logging.getLogger(__name__)

PLACES = Path("/run/heterofleet/volumes")
SETTLED_S = 600.0
"""A place younger than that may belong to a container that is being made, also by another agent."""

MARK_NS = 1_234_567_000
"""When a mount point says that it was last changed. Nothing else does: who sees this time sees no pin."""

_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SLAVE = 0x1000, 0x4000, 0x40000, 0x80000
_MNT_DETACH, _NOFOLLOW = 2, 8
_STACKED_LIMIT = 64
_READINGS = 20
_PLAIN_UID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)


class PinFailed(Exception):
    """The node cannot hold the volume in place; the message says what to do. Nothing is wrong with the task."""


class Pins:
    """Places for claims below ``places``. Made without side effects; safe to use for several claims at once."""

    def __init__(self, places: Path = PLACES) -> None:
        self._places = places

    def place(self, key: Key, number: int) -> str:
        """Where the claim's volume of that number is held, whether or not it is there now."""
        return str(self._folder(key) / str(number))

    def pin(self, key: Key, volumes: Sequence[Volume], fence: Fence, owner: Owner = None) -> tuple[Source, ...]:
        """Admit and hold all volumes of a claim, in their order; what the claim held before is let go first.

        Raises VolumeRejected or PinFailed, and holds nothing then.
        """
        self.release(key)
        if not volumes:
            return ()
        try:
            self._make_places()
            folder = self._folder(key)
            folder.mkdir(mode=0o700)
            sources = []
            for number, volume in enumerate(volumes):
                with fence.opened(volume, owner) as found:
                    self._hold(found, folder / str(number))
                    sources.append(found.source)
            self.refuse_hidden(key, volumes, fence)
        except OSError as error:
            self.release(key)
            raise PinFailed(_in_words(error)) from None
        except BaseException:
            self.release(key)
            raise
        return tuple(sources)

    def holds(self, key: Key, sources: Iterable[tuple[str, int, int]]) -> bool:
        """Whether what was admitted (path, device, inode) is still what lies at the claim's places."""
        return all(
            identity_of(self.place(key, number)) == (device, inode) for number, (_, device, inode) in enumerate(sources)
        )

    def exists(self, key: Key) -> bool:
        """Whether the claim has places; none outlives a restart of the machine."""
        return self._folder(key).is_dir()

    def seen_by(self, pid: int, key: Key, sources: Sequence[tuple[str, int, int]], targets: Sequence[str]) -> bool:
        """Whether a process sees what was admitted (path, device, inode) at ``targets``. OSError when it is gone."""
        for number, ((_, device, inode), target) in enumerate(zip(sources, targets)):
            if _object_in(pid, target) != (device, inode) and not self._mounted_in(pid, self.place(key, number)):
                return False
        return True

    @staticmethod
    def _mounted_in(pid: int, place: str) -> bool:
        """Whether what is held at ``place`` is mounted anywhere in the process's mount namespace: an image may have
        links on the way to a volume's place, and a program may have moved the folders around it.

        The kernel names what is mounted by its path now, which may change between one reading and the next.
        """
        for _ in range(_READINGS):
            held = mounts.at(place, mounts.mounted())
            if held is not None and any(one.shown == held.shown for one in mounts.mounted(pid)):
                return True
        return False

    def release(self, key: Key) -> None:
        """Let go of all that the claim holds; a claim that holds nothing is fine. What cannot go now is left for
        :meth:`sweep`, with a line in the log."""
        self._release(self._folder(key))

    def sweep(self, needed: Collection[Key]) -> None:
        """Let go of what no claim and no container in ``needed`` holds."""
        names = {self._name(key) for key in needed}
        try:
            folders = [Path(entry.path) for entry in os.scandir(self._places) if entry.name not in names]
        except OSError:
            return  # nothing was ever held, or this agent may not look
        for folder in folders:
            try:
                age = time.time() - folder.lstat().st_ctime
            except OSError:
                continue
            if age >= SETTLED_S:
                log.info("%s is let go: no task and no container needs it", folder)
                self._release(folder)

    def _folder(self, key: Key) -> Path:
        return self._places / self._name(key)

    @staticmethod
    def _name(key: Key) -> str:
        uid = key.uid if _PLAIN_UID.fullmatch(key.uid) else sha256(key.uid.encode("utf-8", "replace")).hexdigest()[:32]
        return f"{uid}-{key.attempt}"

    def _make_places(self) -> None:
        """The folder that holds all places, on a mount of its own that tells no other namespace."""
        self._places.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._places.with_name(f".{self._places.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if mounts.at(str(self._places), mounts.mounted()) is None:
                self._places.chmod(0o700)
                _mount(str(self._places), str(self._places), _MS_BIND)
                _mount(None, str(self._places), _MS_PRIVATE)

    @staticmethod
    def _hold(found: Opened, place: Path) -> None:
        """Mount what the handle is at ``place``, with what is mounted below it."""
        if found.folder:
            place.mkdir(mode=0)
        else:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
        os.utime(place, ns=(MARK_NS, MARK_NS))
        try:
            _mount(f"/proc/self/fd/{found.handle}", str(place), _MS_BIND | _MS_REC)
        except FileNotFoundError:
            text = f"mount source does not exist: {found.source.path} (it went while it was checked)"
            raise VolumeRejected(text) from None
        _mount(None, str(place), _MS_SLAVE | _MS_REC)
        if identity_of(str(place)) != (found.source.device, found.source.inode):
            raise PinFailed(f"{found.source.path} could not be held in place: something else was mounted")

    def refuse_hidden(self, key: Key, volumes: Sequence[Volume], fence: Fence) -> None:
        """A path inside the fence may show what is outside, where root has mounted it there, then or since.

        Raises VolumeRejected.
        """
        all_mounts = mounts.mounted()
        machine = [one for one in all_mounts if not mounts.below(str(self._places), [one])]
        for number, volume in enumerate(volumes):
            held = mounts.below(self.place(key, number), all_mounts)
            place = mounts.reaches(held, fence.denied, machine)
            if place is not None:
                raise VolumeRejected(f"volume {volume.host!r} is never allowed: {place} is mounted at or below it")

    @staticmethod
    def _release(folder: Path) -> None:
        try:
            places = [Path(entry.path) for entry in os.scandir(folder)]
            for place in places:
                _unmount(str(place))
                if place.is_dir():
                    place.rmdir()
                else:
                    place.unlink()
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s cannot be let go: %s", folder, error.strerror)


def _object_in(pid: int, target: str) -> Optional[tuple[int, int]]:
    """(device, inode) of what a process has at ``target``, without following a link on the way; None: cannot be
    said. OSError when the process is gone."""
    handle = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
    try:
        for name in target.strip("/").split("/"):
            try:
                inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            except OSError:
                return None
            os.close(handle)
            handle = inner
        found = os.fstat(handle)
        return found.st_dev, found.st_ino
    finally:
        os.close(handle)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_void_p)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)


def _mount(source: Optional[str], target: str, flags: int) -> None:
    """mount(2) without a file system's name or data; OSError."""
    if _libc.mount(None if source is None else os.fsencode(source), os.fsencode(target), None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _unmount(place: str) -> None:
    """Everything that is mounted at ``place``, and nothing anywhere else; fine when nothing is."""
    for _ in range(_STACKED_LIMIT):
        try:
            _mount(None, place, _MS_PRIVATE | _MS_REC)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return  # no mount point (any more)
            raise
        if _libc.umount2(os.fsencode(place), _MNT_DETACH | _NOFOLLOW) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), place)


_ADVICE = {
    errno.EPERM: "the agent may not mount here: run it as root with CAP_SYS_ADMIN, outside a container of its own",
    errno.EACCES: "the agent may not mount here: run it as root with CAP_SYS_ADMIN, outside a container of its own",
    errno.ENOSPC: "no further mount is possible (fs.mount-max), or /run is full",
    errno.ENOSYS: "this kernel cannot mount",
}


def _in_words(error: OSError) -> str:
    advice = _ADVICE.get(error.errno or 0)
    text = f"volumes cannot be held in place ({error.filename or PLACES}: {error.strerror})"
    return f"{text}: {advice}" if advice else text
