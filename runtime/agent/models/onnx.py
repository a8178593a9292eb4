"""Whether an ONNX file is whole, and which files beside it hold its weights.

The file is one message of protocol buffers, so its outermost fields must end where the file ends; a field that would
reach further is cut off. Large models keep weights in files beside it, which the initializers of the graph name
(``external_data``: location, offset, length). Field numbers are those of ``onnx.proto``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Optional

from runtime.agent.checkpoints.files import Torn

_GRAPH, _INITIALIZER, _EXTERNAL_DATA, _KEY, _VALUE = 7, 5, 13, 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
FIELDS_LIMIT = 400_000
TEXT_LIMIT = 4096
PIECE = 1 << 16


class _Message:
    """Steps over fields; one buffer of the file is kept, since fields are small and follow each other."""

    def __init__(self, file: int, size: int) -> None:
        self._file = file
        self._size = size
        self._data = b""
        self._from = 0
        self._fields = 0

    def bytes_at(self, at: int, count: int) -> bytes:
        start = at - self._from
        if not 0 <= start <= start + count <= len(self._data):
            self._data, self._from = os.pread(self._file, max(PIECE, count), at), at
            start = 0
        return self._data[start : start + count]

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(number, start, end) of each field of bytes between ``at`` and ``end``. Raises Torn, or StopLooking."""
        while at < end:
            self._fields += 1
            if self._fields > FIELDS_LIMIT:
                raise StopLooking
            tag, at = self._varint(at, end)
            kind = tag & 7
            if kind == _VARINT:
                _, at = self._varint(at, end)
                continue
            if kind == _BYTES:
                length, at = self._varint(at, end)
            elif kind in (_FIXED64, _FIXED32):
                length = 8 if kind == _FIXED64 else 4
            else:
                raise Torn("does not read as an ONNX file")
            if at + length > end:
                raise Torn("is cut off: a field reaches beyond its end")
            if kind == _BYTES:
                yield tag >> 3, at, at + length
            at += length

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self.bytes_at(at, 1)
            if not byte:
                break
            at += 1
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value, at
            shift += 7
        raise Torn("is cut off, or does not read as an ONNX file")


class StopLooking(Exception):
    """There is more in it than is looked at."""


def external_data(file: int, size: int) -> tuple[tuple[str, int], ...]:
    """The files beside it that it names, with the bytes that each must have at least. Raises Torn."""
    message = _Message(file, size)
    needs: dict[str, int] = {}
    graphs = [(start, end) for number, start, end in message.fields(0, size) if number == _GRAPH]
    if not graphs:
        raise Torn("has no graph: it is cut off, or no ONNX file")
    try:
        for start, end in graphs:
            for number, first, last in message.fields(start, end):
                if number == _INITIALIZER:
                    _note(message, first, last, needs)
    except StopLooking:
        pass
    return tuple(sorted(needs.items()))


def _note(message: _Message, start: int, end: int, needs: dict[str, int]) -> None:
    said: dict[str, str] = {}
    for number, first, last in message.fields(start, end):
        if number == _EXTERNAL_DATA:
            key, value = _entry(message, first, last)
            said[key] = value
    location = said.get("location")
    if location is None:
        return
    parts = location.split("/")
    if location.startswith("/") or ".." in parts or "\0" in location:
        raise Torn("keeps its weights outside of its folder")
    wanted = _number(said.get("offset")) + _number(said.get("length"))
    needs[location] = max(needs.get(location, 1), wanted)


def _entry(message: _Message, start: int, end: int) -> tuple[str, str]:
    texts = {_KEY: "", _VALUE: ""}
    for number, first, last in message.fields(start, end):
        if number in texts and last - first <= TEXT_LIMIT:
            texts[number] = message.bytes_at(first, last - first).decode("utf-8", "replace")
    return texts[_KEY], texts[_VALUE]


def _number(text: Optional[str]) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 19 else 0
