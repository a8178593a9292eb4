"""Which cards a container sees: the environment and the engine's options, by vendor.

The variables belong to the agent; what a task or an image says in their place is replaced.
"""

from __future__ import annotations

from typing import Any, Optional

from runtime.protocol.heartbeat import Gpu

NVIDIA_RUNTIME = "nvidia"

HANDED_OUT = ("nvidia", "virtual")
"""Vendors whose cards we know how to give to a container. Cards of others are seen and told of; a container that was
started without its cards would only look as if it had them."""

OWNED_VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    # What else makes NVIDIA's runtime hook hand out devices or rights over them.
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_NVSWITCH",
    "NVIDIA_GDS",
    "NVIDIA_GDRCOPY",
    "NVIDIA_MOFED",
    # The daemon of another task's cards is not to be found by a guess.
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    # Other vendors' runtimes and libraries, any of which may be an engine's default.
    "ASCEND_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ASCEND_RUNTIME_OPTIONS",
    "ASCEND_VNPU_SPECS",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CAMBRICON_VISIBLE_DEVICES",
    "MLU_VISIBLE_DEVICES",
    "MTHREADS_VISIBLE_DEVICES",
    "MUSA_VISIBLE_DEVICES",
    "BIREN_VISIBLE_DEVICES",
    "XPU_VISIBLE_DEVICES",
    "CXPU_VISIBLE_DEVICES",
    "ILUVATAR_COREX_VISIBLE_DEVICES",
    "IX_VISIBLE_DEVICES",
    "MACA_VISIBLE_DEVICES",
    "ENFLAME_VISIBLE_DEVICES",
    "TOPS_VISIBLE_DEVICES",
)
"""Variables that a task cannot set, and that an image cannot set either."""


def container_options(vendor: Optional[str], gpus: list[Gpu], runtimes: Optional[list[str]] = None) -> dict[str, Any]:
    """``{"environment": {...}}``, and ``runtime`` or ``device_requests`` (the engine's own form) for cards.

    ``runtimes`` are the engine's runtimes: with one named ``nvidia`` the cards go by its variable, else by a
    device request. Without cards NVIDIA's hook is told to give none, whatever the image asks for.
    """
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES": "void"}
    if vendor != "nvidia" or not gpus:
        return {"environment": environment}
    uuids = [gpu.uuid for gpu in gpus]
    environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids)
    environment["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
    if NVIDIA_RUNTIME in (runtimes or []):
        return {"environment": environment, "runtime": NVIDIA_RUNTIME}
    request = {"Driver": "nvidia", "Count": 0, "DeviceIDs": uuids, "Capabilities": [["gpu"]], "Options": {}}
    return {"environment": environment, "device_requests": [request]}


def process_environment(vendor: Optional[str], gpus: list[Gpu]) -> dict[str, str]:
    """For a plain process, which no runtime hook gives its cards: the vendor's library itself reads which it may use.
    Without cards it is told of none."""
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    if vendor == "nvidia" and gpus:
        environment["CUDA_VISIBLE_DEVICES"] = environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
    return environment
