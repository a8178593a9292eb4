"""A process's output, as its pump leaves it: files named by the place of their first byte, the newest two of them.

Places count raw bytes since the first start, so that what was rotated away is still counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from runtime.agent.drivers.errors import EngineUnavailable
from runtime.agent.drivers.output import LogLost, LogPiece, LogRest

MIB = 1 << 20
FILES = 2
PIECE_BYTES = 256 * 1024
LOOK_S = 0.2
FLUSH_S = 3.0
"""How long the pump may take for what was still in the pipe when the process ended."""

DONE, GAP = "done", "gap"


def segment_bytes(log_max_mib: int) -> int:
    """How much one file holds, so that all are together not larger than the limit."""
    return log_max_mib * MIB // FILES


@dataclass(frozen=True)
class _File:
    begin: int
    end: int
    path: Path


class Output:
    """What lies in one folder. ``ended``: whether the process is over, asked as often as it matters."""

    def __init__(self, folder: Path, ended: Callable[[], bool]) -> None:
        self._folder = folder
        self._ended = ended

    def rest(self, limit_bytes: int, after: str) -> LogRest:
        """See ``drivers.output``; of a process that ended, when all is written. A mark is a place in digits."""
        self._settle()
        place = _place(after)
        files = self._files()
        begin, end = (files[0].begin, files[-1].end) if files else (place, place)
        first = max(place, begin, end - limit_bytes)
        data = self._read(files, first, end - first)
        whole = not (self._folder / GAP).exists()
        return LogRest(data, max(0, first + len(data) - place), whole, str(max(place, first + len(data))))

    def follow(self, after: str, on_open: Callable[[Callable[[], None]], None]) -> Iterator[LogPiece]:
        """See ``drivers.output``."""
        closed = threading.Event()
        on_open(closed.set)
        place = _place(after)
        while not closed.is_set():
            last = (self._folder / DONE).exists()
            files = self._files()
            if files and place < files[0].begin:
                raise LogLost(f"the place to go on from ({place}) was rotated away")
            data = self._read(files, place, PIECE_BYTES)
            if data:
                yield LogPiece(data, "", place)
                place += len(data)
            elif last and self._ended():
                return
            else:
                closed.wait(LOOK_S)

    def _settle(self) -> None:
        limit, pause = time.monotonic() + FLUSH_S, threading.Event()
        while self._ended() and not (self._folder / DONE).exists() and time.monotonic() < limit:
            pause.wait(0.02)

    def _files(self) -> list[_File]:
        try:
            with os.scandir(self._folder) as entries:
                found = [
                    _File(int(entry.name), int(entry.name) + entry.stat().st_size, Path(entry.path))
                    for entry in entries
                    if entry.name.isdigit()
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise EngineUnavailable(f"{self._folder}: {error.strerror}") from None
        return sorted(found, key=lambda file: file.begin)

    @staticmethod
    def _read(files: list[_File], first: int, size: int) -> bytes:
        """From ``first`` on; shorter where a file went meanwhile or a gap begins."""
        data = bytearray()
        for file in files:
            at = first + len(data)
            if not file.begin <= at < file.end or len(data) >= size:
                continue
            try:
                with file.path.open("rb") as handle:
                    handle.seek(at - file.begin)
                    data += handle.read(min(size - len(data), file.end - at))
            except FileNotFoundError:
                break
        return bytes(data)


def _place(mark: str) -> int:
    return int(mark) if mark.isdigit() else 0
