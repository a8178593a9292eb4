"""Whether a file is whole, as far as its outside tells: not empty, not a hole, not cut off.

Formats are looked at only where the file plainly is of that format: ``torch.save`` writes a zip archive, whose
directory comes last; a safetensors file begins with the length of its header, and the header says where its data ends
(the format's own document). Any other content is somebody else's business.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Optional

from runtime.agent.checkpoints.folder import MIB, Folder
from runtime.agent.checkpoints.verdict import Incomplete

JSON_LIMIT = 32 * MIB

_ZIP, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
_ZIP_END_SIZE, _ZIP_COMMENT = 22, 65_535
_HEADER_LIMIT = 100_000_000
"""The longest header that safetensors allows."""
_HEADER_READ = 16 * MIB


def whole(folder: Folder, path: str) -> int:
    """The size in bytes of a file that shows no sign of being torn. Raises Incomplete."""
    size = folder.size(path)
    with folder.opened(path) as file:
        if is_hole(file):
            raise Incomplete(f"{path} is one hole of {size} bytes: nothing of it is on the disk")
        head = os.pread(file, 9, 0)
        if head[:4] == _ZIP and not zip_has_end(file, size):
            raise Incomplete(f"{path} is cut off: an archive without its end")
        if head[8:] == b"{":
            _safetensors(file, path, size, int.from_bytes(head[:8], "little"))
    return size


def read_json(folder: Folder, name: str, **hooks: Any) -> Any:
    """A JSON file's value; ``hooks`` as ``json.loads`` takes them. Raises Incomplete."""
    try:
        return json.loads(folder.read(name, JSON_LIMIT), parse_int=_number, **hooks)
    except (ValueError, RecursionError):
        raise Incomplete(f"{name} is not valid JSON") from None


def is_count(value: object) -> bool:
    """Whether a value out of JSON is a number of steps or bytes."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def count_of(value: object) -> int:
    """The value where it is such a number, else 0."""
    return value if isinstance(value, int) and is_count(value) else 0


def _number(text: str) -> object:
    return int(text) if len(text) <= 19 else None  # the time that the others take grows with the square of their length


def is_hole(file: int) -> bool:
    """Whether nothing of an open file is on the disk."""
    try:
        os.lseek(file, 0, os.SEEK_DATA)
    except OSError as error:
        return error.errno == errno.ENXIO
    return False


def zip_has_end(file: int, size: int) -> bool:
    """Whether a zip archive has the directory that is written last."""
    if os.pread(file, 4, max(0, size - _ZIP_END_SIZE)) == _ZIP_END:
        return True
    length = min(size, _ZIP_END_SIZE + _ZIP_COMMENT)
    return _ZIP_END in os.pread(file, length, size - length)


class Torn(ValueError):
    """What is wrong with a file, in words that follow its name."""


def safetensors_size(file: int, size: int) -> Optional[int]:
    """How many bytes a safetensors file of ``size`` bytes has by its own header: eight, the header, and up to the end
    of the last tensor. None where the header is longer than is read. Raises Torn."""
    length = int.from_bytes(os.pread(file, 8, 0), "little")
    data_from = 8 + length
    if size < 8 or size < data_from:
        raise Torn("is cut off in its header")
    if length > _HEADER_READ:
        return None
    try:
        header = json.loads(os.pread(file, length, 8), parse_int=_number)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return data_from + max((end for end in ends if is_count(end)), default=0)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise Torn("has a header that cannot be read") from None


def _safetensors(file: int, path: str, size: int, length: int) -> None:
    if not 0 < length <= _HEADER_LIMIT:
        return  # something else, with a brace by chance
    try:
        wanted = safetensors_size(file, size)
    except Torn as torn:
        raise Incomplete(f"{path} {torn}") from None
    if wanted is not None and size < wanted:
        raise Incomplete(f"{path} is cut off: {size} of {wanted} bytes")
