"""Output between a task and the server: bounded, cut on whole characters, every lost byte accounted for. Pure."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass
from typing import Callable, Optional

Mark = Callable[[int], str]
"""The driver's mark behind the first n bytes; ``""`` where it cannot tell."""

JOIN_BYTES = 16 * 1024
"""Pieces below this are joined: a program that prints two bytes at a time must not cost a hundred times that."""


@dataclass(frozen=True)
class Chunk:
    """What is sent next. ``dropped`` bytes before it are gone; ``gap``: more than these, and nobody knows how many.
    ``end`` is the position behind it."""

    data: bytes
    dropped: int
    gap: bool
    mark: str
    end: int


@dataclass
class _Piece:
    """``start`` is a position; ``cut`` bytes were let go of from the front."""

    start: int
    data: bytearray
    mark: Mark
    gap: bool = False
    cut: int = 0

    def place(self, size: int) -> str:
        """The mark behind the first ``size`` bytes that are left."""
        return self.mark(self.cut + size)


class LogBuffer:
    """Holds at most ``keep`` bytes; the oldest give way, and count as dropped. ``begin``: the position of the first."""

    def __init__(self, keep: int, begin: int = 0) -> None:
        self._keep = keep
        self._pieces: deque[_Piece] = deque()
        self._end = begin  # behind all bytes that ever came or were skipped
        self._sent = begin  # behind those that were delivered or given up
        self._held = 0
        self._gap = False  # before the next piece that comes

    def __len__(self) -> int:
        return self._held

    def skip(self, size: int, unknown: bool) -> None:
        """``size`` bytes come that are not here; ``unknown``: and perhaps more."""
        self._end += size
        self._gap = self._gap or unknown

    def add(self, data: bytes, mark: Mark) -> None:
        if not data:
            return
        last = self._pieces[-1] if self._pieces else None
        if (
            last is not None
            and not self._gap
            and last.start + len(last.data) == self._end
            and len(last.data) + len(data) <= JOIN_BYTES
        ):
            before = last.cut + len(last.data)
            last.data += data
            last.mark = lambda size: mark(size - before) if size > before else ""
        else:
            self._pieces.append(_Piece(self._end, bytearray(data), mark, self._gap))
            self._gap = False
        self._end += len(data)
        self._held += len(data)
        while self._held > self._keep:
            self._forget(self._held - self._keep)

    def next(self, limit: int, *, final: bool = False) -> Optional[Chunk]:
        """At most ``limit`` bytes that follow each other, in whole characters; None when there are none yet.

        ``final``: nothing more comes, so the beginning of a character is sent as well. A gap with nothing behind it
        waits for what comes after it.
        """
        data, end, before_last = bytearray(), 0, 0
        last: Optional[_Piece] = None
        for piece in self._pieces:
            if data and (piece.gap or piece.start != end or len(data) + len(piece.data) > limit):
                break
            before = len(data)
            data += piece.data[: limit - before]
            end = piece.start + len(data) - before
            last, before_last = piece, before
        size = len(data) if final else whole_characters(bytes(data))
        if size == 0 or last is None:
            return None
        first = self._pieces[0]
        at = last.place(size - before_last) if size > before_last else ""
        return Chunk(bytes(data[:size]), first.start - self._sent, first.gap, at, first.start + size)

    def sent(self, chunk: Chunk) -> None:
        """The chunk is delivered. What was dropped meanwhile stays dropped."""
        self._sent = max(self._sent, chunk.end)
        while self._pieces and self._pieces[0].start < chunk.end:
            self._forget(min(len(self._pieces[0].data), chunk.end - self._pieces[0].start), delivered=True)

    def _forget(self, size: int, *, delivered: bool = False) -> None:
        """Let go of the first ``size`` bytes, or of the first piece when that is shorter."""
        piece = self._pieces[0]
        size = min(size, len(piece.data))
        self._held -= size
        if size == len(piece.data):
            self._pieces.popleft()
            if piece.gap and not delivered:
                if self._pieces:
                    self._pieces[0].gap = True
                else:
                    self._gap = True
            return
        del piece.data[:size]
        piece.start += size
        piece.cut += size
        piece.gap = piece.gap and not delivered


def whole_characters(raw: bytes) -> int:
    """How many leading bytes hold only whole UTF-8 characters (bytes that are none count as whole)."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(raw[-4:] if len(raw) > 4 else raw)
    return len(raw) - len(decoder.getstate()[0])


@dataclass
class Allowance:
    """At most ``rate`` bytes a second, and no more than one second's worth at once. ``now`` in seconds."""

    rate: float
    left: float
    at: float

    def available(self, now: float) -> int:
        self.left = min(self.rate, self.left + (now - self.at) * self.rate)
        self.at = now
        return int(self.left)
