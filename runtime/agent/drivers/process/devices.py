"""Which device files belong to NVIDIA's cards, so that a process gets those and no others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from runtime.agent.hardware.nvml_cards import VENDOR as NVIDIA
from runtime.agent.hardware.visibility import HANDED_OUT
from runtime.protocol.hardware import Gpu

COMMON_NVIDIA = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "dxg")
"""``dxg`` is the one device of all cards under WSL."""

_MINOR = re.compile(r"^(?:Device Minor|DeviceFileMinor):\s*(\d+)\s*$", re.MULTILINE)


class DevicesUnknown(Exception):
    """Nobody can say which device files a card has; the message says which card."""


def device_files(gpus: Sequence[Gpu], root: Path = Path("/")) -> tuple[str, ...]:
    """Paths below /dev that exist, of NVIDIA's cards; those of others come with the plan. Raises DevicesUnknown.

    The driver's own files under /proc/driver/nvidia name each card's and each slice's minor number.
    """
    found: list[str] = []
    for gpu in gpus:
        if gpu.vendor not in HANDED_OUT:
            raise DevicesUnknown(f"no such device: which files belong to a card of {gpu.vendor} is not known here")
        if gpu.vendor == NVIDIA:
            found += _nvidia(gpu, root)
    return tuple(dict.fromkeys(found))


def _nvidia(gpu: Gpu, root: Path) -> list[str]:
    dev = root / "dev"
    found = [f"/dev/{name}" for name in COMMON_NVIDIA if (dev / name).exists()]
    if not (dev / "nvidiactl").exists():
        return found  # no driver of this kernel has files: WSL, or cards that are a lab's
    minor = _read_minor(root / "proc/driver/nvidia/gpus" / _pci(gpu.pci_bus_id) / "information")
    if minor is None:
        raise DevicesUnknown(f"no such device: which file belongs to card {gpu.uuid} is not known")
    found.append(f"/dev/nvidia{minor}")
    if gpu.gi_id is not None:
        mig = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu.gi_id}"
        for access in (mig / "access", mig / f"ci{gpu.ci_id}" / "access"):
            cap = _read_minor(access)
            if cap is None:
                raise DevicesUnknown(f"no such device: which files belong to slice {gpu.uuid} is not known")
            found.append(f"/dev/nvidia-caps/nvidia-cap{cap}")
    return found


def _read_minor(path: Path) -> Optional[int]:
    try:
        matched = _MINOR.search(path.read_text("utf-8", "replace"))
    except OSError:
        return None
    return None if matched is None else int(matched.group(1))


def _pci(bus_id: Optional[str]) -> str:
    """As the kernel writes it: a domain of four digits, in lower case; NVML writes eight."""
    domain, _, rest = (bus_id or "").lower().partition(":")
    return f"{domain[-4:]}:{rest}"
