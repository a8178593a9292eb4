"""How long a gguf file must be, by its own header: key-values, then one record a tensor, then the aligned data.

Source of the form: the ``gguf`` page of the ggml project (versions 2 and 3; version 1 has 32-bit lengths). A header
is read through one buffer of bounded size; a file that ends inside its header is torn.
"""

from __future__ import annotations

import os
from typing import Optional

from runtime.agent.checkpoints.files import Torn

MAGIC = b"GGUF"
HEADER_LIMIT = 64 << 20
PIECE = 1 << 20
ITEMS_LIMIT = 4_000_000
"""Of all arrays together: vocabularies have some 300,000 words, with a score and a type each."""
DIMENSIONS_LIMIT = 8

_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
"""Type of a tensor -> (numbers in a block, bytes of a block), as ggml's table of types has them."""


class _Long(Exception):
    """The header is longer than is read."""


class _Header:
    """Reads forward through the file, a piece at a time."""

    def __init__(self, file: int, size: int) -> None:
        self._file = file
        self._size = size
        self._data = b""
        self._from = 0
        self.at = 0
        self.items = 0

    def take(self, count: int) -> bytes:
        start = self.at - self._from
        if not 0 <= start <= start + count <= len(self._data):
            self._load(count)
            start = 0
        self.at += count
        return self._data[start : start + count]

    def skip(self, count: int) -> None:
        if self.at + count > self._size:
            raise Torn("is cut off in its header")
        self.at += count
        if self.at > HEADER_LIMIT:
            raise _Long

    def _load(self, count: int) -> None:
        if self.at + count > self._size:
            raise Torn("is cut off in its header")
        if self.at + count > HEADER_LIMIT:
            raise _Long
        self._data, self._from = os.pread(self._file, max(count, PIECE), self.at), self.at
        if len(self._data) < count:
            raise Torn("is cut off in its header")

    def uint32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def uint64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def text(self) -> None:
        self.skip(self.uint64())

    def value(self, kind: int) -> Optional[int]:
        """One value passed over; the number itself where it is an unsigned one of 32 bits."""
        if kind == _UINT32:
            return self.uint32()
        if kind in _SCALARS:
            self.skip(_SCALARS[kind])
        elif kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            self._array()
        else:
            raise Torn(f"has a header that cannot be read: a value of type {kind}")
        return None

    def _array(self) -> None:
        kind, count = self.uint32(), self.uint64()
        if kind in _SCALARS:
            self.skip(_SCALARS[kind] * count)
            return
        self.items += count
        if self.items > ITEMS_LIMIT:
            raise _Long
        if kind not in (_STRING, _ARRAY):
            raise Torn(f"has a header that cannot be read: an array of type {kind}")
        for _ in range(count):
            if kind == _STRING:
                self.text()
            else:
                self._array()


def declared_size(file: int, size: int) -> Optional[int]:
    """How many bytes the file has at least, by its header; None where the header is longer than is read, or of a
    version that nobody here knows. Raises Torn."""
    header = _Header(file, size)
    try:
        if header.take(4) != MAGIC:
            raise Torn("does not begin as a gguf file")
        version = header.uint32()
        if version not in (2, 3):
            return None
        return _end(header)
    except (_Long, RecursionError):
        return None


def _end(header: _Header) -> Optional[int]:
    tensors, pairs = header.uint64(), header.uint64()
    if tensors + pairs > ITEMS_LIMIT:
        return None
    alignment = 32
    for _ in range(pairs):
        name = header.take(min(header.uint64(), HEADER_LIMIT))
        number = header.value(header.uint32())
        if name == b"general.alignment" and number:
            alignment = number
    ends = [0]
    for _ in range(tensors):
        header.text()
        dimensions = header.uint32()
        if dimensions > DIMENSIONS_LIMIT:
            raise Torn(f"has a header that cannot be read: a tensor of {dimensions} dimensions")
        numbers = 1
        for _ in range(dimensions):
            numbers *= header.uint64()
        # A type that is not in the table: the tensor has a byte at least.
        block, length = _BLOCKS.get(header.uint32(), (max(numbers, 1), 1))
        ends.append(header.uint64() + numbers // block * length)
    data_from = -(-header.at // alignment) * alignment
    return data_from + max(ends) if tensors else header.at
