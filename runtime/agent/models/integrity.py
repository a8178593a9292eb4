"""Whether one file is whole, as far as its own header tells: nothing is read but headers, and those within bounds.

A format that says how long a file must be gives ``complete`` or ``incomplete``; one that does not gives ``unknown``,
never a guess. safetensors: 8 + header + last offset. gguf: see :mod:`gguf`. PyTorch: a zip archive whose directory
comes last. ONNX: see :mod:`onnx`. Plans of TensorRT say nothing of their length.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, NamedTuple, Optional

from runtime.agent.checkpoints.files import Torn, is_hole, safetensors_size, zip_has_end
from runtime.agent.models import gguf, onnx
from runtime.agent.models.names import CONFIG, INDEX, PIPELINE
from runtime.protocol.engines import GGUF, ONNX, PYTORCH, SAFETENSORS

COMPLETE, INCOMPLETE, UNKNOWN = "complete", "incomplete", "unknown"
JSON_LIMIT = 32 << 20
HEADER_LIMIT = 100_000_000
"""The longest header that safetensors allows."""
LARGEST_WORLD = 4096

_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_ZIP = b"PK\x03\x04"


class Verdict(NamedTuple):
    """``reason`` says what is wrong, in words that follow the file's name. ``needs``: other files of the same folder
    that it names, each with the least size in bytes that it must have."""

    state: str
    reason: Optional[str] = None
    needs: tuple[tuple[str, int], ...] = ()


def look(path: str, kind: str) -> Verdict:
    """The verdict on one file, whatever it is. Raises OSError when it cannot be read."""
    file = os.open(path, _OPEN)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return Verdict(UNKNOWN, "is no plain file")
        if found.st_size == 0:
            return Verdict(INCOMPLETE, "is empty")
        if is_hole(file):
            return Verdict(INCOMPLETE, f"is one hole of {found.st_size} bytes: nothing of it is on the disk")
        return _judge(file, found.st_size, kind)
    except Torn as torn:
        return Verdict(INCOMPLETE, str(torn))
    finally:
        os.close(file)


def _judge(file: int, size: int, kind: str) -> Verdict:
    if kind == SAFETENSORS:
        return _safetensors(file, size)
    if kind == GGUF:
        return _by_length(size, gguf.declared_size(file, size), exact=False)
    if kind == ONNX:
        return Verdict(COMPLETE, needs=onnx.external_data(file, size))
    if kind == PYTORCH:
        return _pytorch(file, size)
    if kind == INDEX:
        return _index(_json(file, size))
    if kind == CONFIG:
        return Verdict(COMPLETE, needs=_ranks(_json(file, size)))
    if kind == PIPELINE:
        _json(file, size)
        return Verdict(COMPLETE)
    return Verdict(UNKNOWN, "is of a form that says nothing of its own length")


def _safetensors(file: int, size: int) -> Verdict:
    length = int.from_bytes(os.pread(file, 8, 0), "little")
    if size >= 8 and length > HEADER_LIMIT:
        raise Torn(f"claims a header of {length} bytes; the format allows {HEADER_LIMIT}")
    return _by_length(size, safetensors_size(file, size), exact=True)


def _by_length(size: int, wanted: Optional[int], exact: bool) -> Verdict:
    if wanted is None:
        return Verdict(UNKNOWN, "has a header that is not read to its end")
    if size < wanted:
        raise Torn(f"is cut off: {size} of {wanted} bytes")
    if exact and size > wanted:
        raise Torn(f"has {size} bytes where its header tells of {wanted}")
    return Verdict(COMPLETE)


def _pytorch(file: int, size: int) -> Verdict:
    if os.pread(file, 4, 0) != _ZIP:
        return Verdict(UNKNOWN, "is of PyTorch's old form, which says nothing of its own length")
    if not zip_has_end(file, size):
        raise Torn("is cut off: an archive without its end")
    return Verdict(COMPLETE)


def _json(file: int, size: int) -> Any:
    if size > JSON_LIMIT:
        raise Torn(f"has {size} bytes, too many for what it should be")
    try:
        document = json.loads(os.pread(file, size, 0))
    except (ValueError, RecursionError):
        raise Torn("is not valid JSON") from None
    if not isinstance(document, dict):
        raise Torn("is not a JSON object")
    return document


def _index(document: Any) -> Verdict:
    """The shards that an index of the hub's form names: plain names beside it."""
    shards = document.get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise Torn("names no shards")
    names = set(shards.values()) if all(isinstance(name, str) for name in shards.values()) else {""}
    if any(not name or name.startswith(".") or "/" in name or "\0" in name for name in names):
        raise Torn("names shards that are no plain names")
    return Verdict(COMPLETE, needs=tuple((name, 1) for name in sorted(names)))


def _ranks(document: Any) -> tuple[tuple[str, int], ...]:
    """The plans that a TensorRT-LLM engine's settings tell of: one a rank."""
    build = document.get("pretrained_config")
    mapping = build.get("mapping") if isinstance(build, dict) else None
    world = mapping.get("world_size") if isinstance(mapping, dict) else None
    if not isinstance(world, int) or isinstance(world, bool) or not 1 <= world <= LARGEST_WORLD:
        return ()
    return tuple((f"rank{rank}.engine", 1) for rank in range(world))
