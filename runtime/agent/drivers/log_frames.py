"""A container's output as the engine keeps it: frames with timestamps, in files that rotate.

The engine numbers nothing. A place in the output is found again by the frame it lies in: stream, timestamp, and
which of the frames with that timestamp it is (a line longer than 16 KiB comes in several frames of one timestamp).
Rotation takes the oldest frames away and tells nobody; where that may have happened, nothing is claimed to be whole.

Frames: Docker Engine API, "stream format" of ``/containers/{id}/attach``, with ``timestamps=1``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Optional

from runtime.agent.drivers.errors import EngineUnavailable
from runtime.agent.drivers.output import LogLost, LogPiece, LogRest

HEADER = struct.Struct(">BxxxL")
LONGEST_FRAME = 1 << 20
"""The engine cuts lines at 16 KiB; a longer frame is none."""

SMALLEST_ROTATION = 500_000
"""No container of ours has smaller files: while less is there, nothing was rotated away."""

LOOK_BACK = 4096
"""A stream that goes on from a mark begins so many frames before the end: the mark was the end a moment ago."""

_COUNT_BYTES = 1 << 18
_ESCAPED = bytes([*range(32), *b'"\\<>&', 127])
_HIGH = bytes(range(128, 256))
_FRAME_JSON = 128
"""Braces, names, stream and time around a frame's text in the engine's file, at most."""

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_ATTRIBUTES = ("labels", "labels-regex", "env", "env-regex", "tag")


class Entry(NamedTuple):
    """One frame. ``stream``: 1 is standard output, 2 standard error. ``stamp`` is the engine's, as text."""

    stream: int
    stamp: str
    data: bytes


@dataclass(frozen=True)
class Place:
    """A mark, read: behind ``offset`` bytes of the ``number``-th frame of its stream and timestamp."""

    stream: int
    stamp: str
    number: int
    offset: int

    @classmethod
    def read(cls, mark: str) -> Optional[Place]:
        """None for ``""`` and for what no version of this driver wrote."""
        words = mark.split()
        if len(words) != 4 or not all(word.isdigit() for word in (words[0], words[2], words[3])):
            return None
        return cls(int(words[0]), words[1], int(words[2]), int(words[3]))


def entries(pieces: Iterable[bytes]) -> Iterator[Entry]:
    """The frames in a stream that is cut anywhere. Raises EngineUnavailable for what is no such stream."""
    buffer = b""
    for piece in pieces:
        buffer = buffer + piece if buffer else piece
        at, size = 0, len(buffer)
        while size - at >= HEADER.size:
            stream, length = HEADER.unpack_from(buffer, at)
            if stream > 2 or length > LONGEST_FRAME:
                raise EngineUnavailable("the engine's log stream has an unknown shape")
            begin, end = at + HEADER.size, at + HEADER.size + length
            if end > size:
                break
            cut = buffer.find(b" ", begin, end)
            if cut < 0:
                raise EngineUnavailable("the engine's log stream has no timestamps")
            yield Entry(stream, buffer[begin:cut].decode("ascii", "replace"), buffer[cut + 1 : end])
            at = end
        buffer = buffer[at:]


class Numbers:
    """Numbers frames among those of their stream that share a timestamp, in the order they come."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, int]] = {}
        self._first: dict[int, str] = {}

    def of(self, entry: Entry) -> int:
        stamp, number = self._last.get(entry.stream, ("", 0))
        number = number + 1 if stamp == entry.stamp else 1
        self._last[entry.stream] = (entry.stamp, number)
        self._first.setdefault(entry.stream, entry.stamp)
        return number

    def certain(self, entry: Entry, number: int) -> bool:
        """Whether the number is true: frames of the same line may have been before the first that was seen."""
        alone = number == 1 and entry.data.endswith(b"\n")
        return alone or self._first[entry.stream] != entry.stamp


@dataclass(frozen=True)
class Look:
    """What one reading of the engine's log has shown. ``complete``: all frames that the engine has were read;
    ``file_size`` is the most bytes that those which were read take in its files."""

    rest: LogRest
    file_size: int
    complete: bool


def look_at(
    found: Iterable[Entry],
    after: str,
    limit_bytes: int,
    asked: Optional[int],
    rotation: Callable[[], Optional[int]],
    give_up_at: Optional[int] = None,
) -> Look:
    """What lies behind ``after`` in ``found``, the oldest frame first.

    ``asked``: at most the last so many frames were asked for; None: all. Only when the engine's files hold at least
    ``rotation()`` bytes can frames before the first be gone (None: they may be gone in any case). With ``give_up_at``
    reading ends when so many bytes have been read.
    """
    place = Place.read(after)
    numbers = Numbers()
    reached, certain, complete = after == "", False, True
    tail, fresh = bytearray(), bytearray()
    size = file_size = frames = counted = 0
    mark = after

    def count() -> None:
        nonlocal size, file_size, counted
        size += len(fresh)
        file_size += _most_json(fresh) + _FRAME_JSON * (frames - counted)
        counted = frames
        tail.extend(fresh)
        del tail[: max(0, len(tail) - limit_bytes)], fresh[:]

    for entry in found:
        number, data = numbers.of(entry), entry.data
        frames += 1
        mark = f"{entry.stream} {entry.stamp} {number} {len(data)}"
        if place is not None and not reached and (entry.stream, entry.stamp) == (place.stream, place.stamp):
            # Frames of that line were read already, at least up to the one that is looked for.
            fresh += data
            count()
            reached, certain = number == place.number, numbers.certain(entry, number)
            size = 0
            del tail[:]
            data = data[place.offset :] if reached else b""
        fresh += data
        if len(fresh) >= _COUNT_BYTES:
            count()
            if give_up_at is not None and file_size >= give_up_at:
                complete = False
                break
    count()
    complete = complete and (asked is None or frames < asked)
    whole = reached and (certain or (complete and _nothing_gone(file_size, rotation)))
    return Look(LogRest(bytes(tail), size, whole, mark), file_size, complete)


def _nothing_gone(file_size: int, rotation: Callable[[], Optional[int]]) -> bool:
    if file_size < SMALLEST_ROTATION:
        return True
    limit = rotation()
    return limit is not None and file_size < limit


def _most_json(text: bytearray) -> int:
    """How many bytes the text takes in the engine's file, at most: escaped as JSON, bad bytes written out."""
    escaped = len(text) - len(text.translate(None, _ESCAPED))
    high = len(text) - len(text.translate(None, _HIGH))
    return len(text) + 5 * escaped + high


def pieces_after(found: Iterable[Entry], after: str, opened: str) -> Iterator[LogPiece]:
    """The frames behind the mark ``after`` as they come, from the last LOOK_BACK ones on. ``opened`` is the time of
    asking, written as the engine writes it: once a frame is younger, a mark that was not met is LogLost."""
    place = Place.read(after)
    numbers = Numbers()
    reached, passed = place is None, 0
    for entry in found:
        number, data, base = numbers.of(entry), entry.data, 0
        if place is not None and not reached:
            passed += 1
            same = (entry.stream, entry.stamp, number) == (place.stream, place.stamp, place.number)
            if not (same and numbers.certain(entry, number)):
                if same or entry.stamp > opened or passed > LOOK_BACK:
                    raise LogLost("the place to go on from is gone from the engine's log")
                continue
            reached, base = True, place.offset
            data = data[base:]
        if data:
            yield LogPiece(data, f"{entry.stream} {entry.stamp} {number} ", base)


def rotates_at(log_config: dict[str, Any]) -> Optional[int]:
    """From which size of the engine's log files on frames may have been rotated away, by a container's log settings.

    The engine begins a new file when one has reached its size, and keeps ``max-file`` of them. With less than all
    but one of them full, nothing is gone yet. None: it cannot be told.
    """
    options = log_config.get("Config") or {}
    if log_config.get("Type") != "json-file" or any(options.get(name) for name in _ATTRIBUTES):
        return None
    if "max-size" not in options:
        return 1 << 62  # never
    matched = _SIZE.fullmatch(str(options["max-size"]).strip())
    files = str(options.get("max-file", "1"))
    if matched is None or not files.isdigit():
        return None
    return max(0, int(files) - 1) * int(matched.group(1)) * _UNITS[matched.group(2).lower()]
