"""What the kernel itself says of PCI devices: which vendors' accelerators are plugged in, and near which CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

SYSFS = Path("/sys/bus/pci/devices")
DISPLAY_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""VGA, 3D and other display controllers, processing accelerators."""

_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


def normal_bus_id(text: Optional[str]) -> Optional[str]:
    """``00000000:17:00.0`` for every way of writing it (domain of 4 or 8 digits or none, either case)."""
    match = _BUS_ID.search(text or "")
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):08X}:{bus.upper()}:{device.upper()}.{function}"


def printed_bus_id(text: Optional[str]) -> Optional[str]:
    """The bus id in a cell, as it is printed there; None when there is none."""
    match = _BUS_ID.search(text or "")
    return None if match is None else match.group(0)


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def accelerators(vendor_id: str, sysfs: Path = SYSFS, classes: Sequence[str] = DISPLAY_CLASSES) -> list[str]:
    """Bus ids of the devices of a PCI vendor (``0x10de``) and of these classes."""
    return [
        device.name
        for device in _devices(sysfs)
        if _read(device / "vendor") == vendor_id and _read(device / "class")[:6] in classes
    ]


def devices_of_class(pci_class: str, sysfs: Path = SYSFS) -> list[str]:
    """Bus ids of the devices of a class (``0x0207``), whoever made them."""
    return [device.name for device in _devices(sysfs) if _read(device / "class")[:6] == pci_class]


def _devices(sysfs: Path) -> list[Path]:
    try:
        return sorted(sysfs.iterdir())
    except OSError:
        return []


def bound_driver(device: str, sysfs: Path = SYSFS) -> Optional[str]:
    """The kernel's driver that has a device; None when none has."""
    link = sysfs / device / "driver"
    return link.resolve().name if link.exists() else None


def is_virtual_function(device: str, sysfs: Path = SYSFS) -> bool:
    """Whether it is a part of another device, made for a virtual machine."""
    return (sysfs / device / "physfn").exists()


def numa_node(bus_id: Optional[str], sysfs: Path = SYSFS) -> Optional[int]:
    """The NUMA node of a device; None when it has none or the kernel does not say."""
    normal = normal_bus_id(bus_id)
    if normal is None:
        return None
    text = _read(sysfs / normal[4:].lower() / "numa_node")
    return int(text) if text.isdigit() else None
