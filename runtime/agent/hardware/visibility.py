"""Which cards a container sees: the environment and the engine's options, by vendor.

The variables belong to the agent; what a task or an image says in their place is replaced.
"""

from __future__ import annotations

from typing import Any, Optional

from runtime.protocol.heartbeat import Gpu

NVIDIA_RUNTIME = "nvidia"

OWNED_VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
)
"""Variables that a task cannot set."""


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
