"""Small files in the forms of real models, whole to the last byte."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path


def safetensors(data: int = 16) -> bytes:
    """One tensor of so many bytes."""
    header = json.dumps({"t": {"dtype": "U8", "shape": [data], "data_offsets": [0, data]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\1" * data


def gguf(numbers: int = 64, words: int = 3) -> bytes:
    """One tensor of 32-bit floats, after a vocabulary of so many words."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    pairs = [
        text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama"),
        text(b"general.alignment") + struct.pack("<II", 4, 64),
        text(b"tokens") + struct.pack("<IIQ", 9, 8, words) + text(b"word") * words,
    ]
    tensor = text(b"output") + struct.pack("<IQIQ", 1, numbers, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor
    return head + b"\0" * (-len(head) % 64) + struct.pack("<f", 1.5) * numbers


def pytorch() -> bytes:
    """An archive as ``torch.save`` writes it."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", b"\1" * 64)
    return held.getvalue()


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def onnx(external: str | None = None, length: int = 0) -> bytes:
    """A graph with one initializer, which may keep its data in a file beside it."""
    tensor = _field(8, b"weight")
    if external is not None:
        for key, value in (("location", external), ("offset", "0"), ("length", str(length))):
            tensor += _field(13, _field(1, key.encode()) + _field(2, value.encode()))
    else:
        tensor += _field(9, b"\1" * 64)
    return b"\x08\x08" + _field(2, b"maker") + _field(7, _field(1, b"node") + _field(5, tensor))


def sharded(folder: Path, count: int = 3, missing: tuple[int, ...] = ()) -> list[Path]:
    """A folder with an index and shards; those that are there."""
    folder.mkdir(parents=True)
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    index = {"metadata": {}, "weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    there = [folder / name for n, name in enumerate(names, 1) if n not in missing]
    for path in there:
        path.write_bytes(safetensors())
    return there


def hub_snapshot(cache: Path, name: str, files: dict[str, bytes], revision: str = "0a1b") -> Path:
    """A repository in a hub cache: blobs, and a snapshot of links to them."""
    home = cache / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / revision
    (home / "blobs").mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True)
    for number, (file, data) in enumerate(files.items()):
        (home / "blobs" / f"{number:040x}").write_bytes(data)
        (snapshot / file).symlink_to(f"../../blobs/{number:040x}")
    return snapshot
