"""What is put into a folder, as it happens (inotify(7))."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from runtime.agent.drivers.errors import EngineUnavailable, StreamSilent

_MOVED_TO = 0x80
_OVERFLOW = 0x4000
_HEADER = struct.Struct("iIII")
_BUFFER = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


def names_put(folder: Path, on_open: Callable[[Callable[[], None]], None], silence_s: float) -> Iterator[str]:
    """The name of each file that is moved into ``folder``. StreamSilent when nothing happens for ``silence_s``."""
    watching = _Watching(folder)
    try:
        on_open(watching.close)
        while not watching.closed.is_set():
            ready, _, _ = select.select([watching.handle, watching.wake_read], [], [], silence_s)
            if watching.closed.is_set():
                return
            if not ready:
                raise StreamSilent(f"nothing was put into {folder} for {silence_s:g} s")
            yield from _names(os.read(watching.handle, _BUFFER))
    finally:
        watching.end()


class _Watching:
    def __init__(self, folder: Path) -> None:
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self.handle: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.handle < 0:
            raise EngineUnavailable(f"the kernel watches no further folder: {os.strerror(ctypes.get_errno())}")
        self.wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        if _libc.inotify_add_watch(self.handle, os.fsencode(folder), _MOVED_TO) < 0:
            error = os.strerror(ctypes.get_errno())
            self.end()
            raise EngineUnavailable(f"{folder} cannot be watched: {error}")

    def close(self) -> None:
        """From any thread."""
        with self._lock:
            if not self.closed.is_set():
                self.closed.set()
                os.write(self._wake_write, b"x")

    def end(self) -> None:
        with self._lock:
            self.closed.set()
        for handle in (self.handle, self.wake_read, self._wake_write):
            os.close(handle)


def _names(data: bytes) -> Iterator[str]:
    """Events overflowed: StreamSilent, and the caller looks for itself."""
    at = 0
    while at + _HEADER.size <= len(data):
        _, mask, _, length = _HEADER.unpack_from(data, at)
        if mask & _OVERFLOW:
            raise StreamSilent("more was put into the folder than the kernel kept in mind")
        name = data[at + _HEADER.size : at + _HEADER.size + length].rstrip(b"\0")
        at += _HEADER.size + length
        if name:
            yield os.fsdecode(name)
