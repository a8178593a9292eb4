"""What a node with cards has that one without has not: the library, the tool and the runtime."""

from __future__ import annotations

import platform

from tests.lab.cards import build
from tests.lab.images import Content

LIBRARY = f"usr/lib/{platform.machine()}-linux-gnu/libnvidia-ml.so.1"
TOOL = "usr/bin/nvidia-smi"
RUNTIME = "usr/bin/nvidia-container-runtime"
HOOK = "usr/bin/nvidia-container-runtime-hook"  # `docker run --gpus` looks for it


def files() -> dict[str, Content]:
    """Files to put into the node, by path without the leading slash."""
    runtime = build.runtime().read_bytes()
    return {
        LIBRARY: build.library().read_bytes(),
        TOOL: (build.tool(), 0o755),
        RUNTIME: (runtime, 0o755),
        HOOK: (runtime, 0o755),
    }
