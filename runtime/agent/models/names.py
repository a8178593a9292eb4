"""What a file's name says it is, and the names of parts that belong together. Pure.

The names are those of the Hugging Face hub (``model-00001-of-00003.safetensors`` and its index), of llama.cpp's
``gguf-split``, of Optimum (ONNX), and of TensorRT and TensorRT-LLM (``rank0.engine``).
"""

from __future__ import annotations

import re
from typing import Optional

from runtime.protocol.engines import GGUF, ONNX, PYTORCH, SAFETENSORS, TENSORRT

INDEX, CONFIG, PIPELINE, ADAPTER, PART = "index", "config", "pipeline", "adapter", "part"
"""Kinds of files beside weights: the index of shards, ``config.json``, the index of a pipeline of several models,
the mark of an adapter (which is no model by itself), and a file that is still being written."""

PART_SUFFIXES = (".part", ".partial", ".incomplete", ".tmp", ".temp", ".download", ".crdownload", ".aria2", ".!qb")
"""What downloaders put behind the name of a file that is not whole yet."""

SKIPPED_FOLDERS = frozenset({"lost+found", "__pycache__", "node_modules"})
WALKED_HIDDEN = frozenset({".cache"})
"""Hidden folders hold snapshots, trash and locks, and in them everything a second time; but for this one."""

_SUFFIXES = {
    ".safetensors": SAFETENSORS,
    ".gguf": GGUF,
    ".onnx": ONNX,
    ".engine": TENSORRT,
    ".plan": TENSORRT,
    ".trt": TENSORRT,
}
_NAMED = {"config.json": CONFIG, "model_index.json": PIPELINE, "adapter_config.json": ADAPTER}
_INDEX = re.compile(r".*\.(?:safetensors|bin)\.index\.json", re.IGNORECASE | re.DOTALL)
_PYTORCH_BIN = re.compile(r"(?:pytorch_model|model|diffusion_pytorch_model)([.-].*)?\.bin", re.IGNORECASE | re.DOTALL)
_NOT_WEIGHTS = ("optimizer", "scheduler", "rng_state", "training_args", "scaler", "zero_pp_rank", "events", "adapter_",
                "mmproj", "tokenizer")  # fmt: skip
_SHARD = re.compile(r"(?P<stem>.+?)[-_](?P<number>\d{5})-of-(?P<total>\d{5})\.(?P<suffix>safetensors|gguf|bin)")
_RANKED = re.compile(r"consolidated\.(\d{2})\.pth|rank(\d+)\.engine")
_GENERIC = re.compile(r"(?:model|pytorch_model|diffusion_pytorch_model|consolidated)(?:\.(?:fp16|bf16|fp32))?")


def kind_of(name: str) -> Optional[str]:
    """One of the formats, or one of the kinds above; None for what is of no interest."""
    lower = name.lower()
    if lower in _NAMED:
        return _NAMED[lower]
    if _INDEX.fullmatch(name):
        return INDEX
    base = part_of(name)
    if base is not None:
        return PART if _weights(base) is not None else None
    return _weights(name)


def part_of(name: str) -> Optional[str]:
    """The name that a file which is still being written will have; None for any other file."""
    for suffix in PART_SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return None


def _weights(name: str) -> Optional[str]:
    stem, dot, suffix = name.lower().rpartition(".")
    if not stem or stem.startswith(_NOT_WEIGHTS):
        return None
    if suffix in ("pt", "pth") or _PYTORCH_BIN.fullmatch(name):
        return PYTORCH
    return _SUFFIXES.get(dot + suffix)


def walks_into(folder: str) -> bool:
    """Whether a folder of that name is looked into."""
    return folder not in SKIPPED_FOLDERS and (not folder.startswith(".") or folder in WALKED_HIDDEN)


def set_of(name: str) -> tuple[str, int]:
    """Which set of parts a weights file belongs to, and of how many parts that is (0: not said by the name)."""
    shard = _SHARD.fullmatch(name)
    if shard is not None:
        return f"{shard['stem']}.{shard['suffix']}", int(shard["total"])
    if _RANKED.fullmatch(name):
        return re.sub(r"\d+", "*", name), 0
    return name, 1


def parts_of_set(name: str) -> list[str]:
    """All parts of the set that one of its parts names; the part alone where its name tells of no others."""
    shard = _SHARD.fullmatch(name)
    if shard is None:
        return [name]
    head, tail = name[: shard.start("number")], name[shard.end("number") :]
    return [f"{head}{number:05}{tail}" for number in range(1, min(int(shard["total"]), 10_000) + 1)]


def is_generic(name: str) -> bool:
    """Whether a file's name says nothing of its own, so that its folder's name is the model's."""
    stem = set_of(name)[0].rpartition(".")[0]
    return _GENERIC.fullmatch(stem) is not None or "*" in stem


def hub_name(path: str) -> Optional[tuple[str, str]]:
    """(name, folder of the repository) of a snapshot in a hub cache: ``models--ORG--NAME/snapshots/REVISION``."""
    found = re.fullmatch(r"(?P<home>(?:.*/)?models--(?P<name>[^/]+))/snapshots/[^/]+", path, re.DOTALL)
    return (found["name"].replace("--", "/", 1), found["home"]) if found else None
