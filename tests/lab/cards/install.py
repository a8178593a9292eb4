"""What a node with cards has that one without has not: the library, the tool and the runtime."""

from __future__ import annotations

from tests.lab.images import Content

LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
TOOL = "usr/bin/nvidia-smi"
RUNTIME = "usr/bin/nvidia-container-runtime"


def files() -> dict[str, Content]:
    """Files to put into the node, by path without the leading slash."""
    return {}
