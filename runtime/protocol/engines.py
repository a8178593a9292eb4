"""The inference engines that are known by name: what each of them serves, and whose cards its own image is built for.

Both ends go by it: the server when it fills in the vendor of a task without one, the node when it picks an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

AUTO = "auto"
"""The node picks the engine."""

SAFETENSORS, GGUF, PYTORCH, ONNX, TENSORRT = "safetensors", "gguf", "pytorch", "onnx", "tensorrt"
FORMATS = (SAFETENSORS, GGUF, PYTORCH, ONNX, TENSORRT)
"""The forms in which models lie on disks."""


@dataclass(frozen=True)
class EngineKind:
    """``formats`` are those that it loads from a folder or file; ``vendor`` is that of its image's cards."""

    name: str
    formats: tuple[str, ...]
    vendor: Optional[str]


ENGINES: tuple[EngineKind, ...] = (
    EngineKind("vllm", (SAFETENSORS, PYTORCH), "nvidia"),
    EngineKind("sglang", (SAFETENSORS, PYTORCH), "nvidia"),
    EngineKind("llama.cpp", (GGUF,), "nvidia"),
    EngineKind("tgi", (SAFETENSORS, PYTORCH), "nvidia"),
    EngineKind("mindie", (SAFETENSORS,), "ascend"),
    EngineKind("lmdeploy", (SAFETENSORS, PYTORCH), "nvidia"),
)


def engine_kind(name: str) -> Optional[EngineKind]:
    """The engine of that name; None when there is none."""
    return next((kind for kind in ENGINES if kind.name == name), None)
