"""What of each vendor the kernel shows: devices on PCI and what drives them, and the driver's own device files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from runtime.agent.doctor.advice import module_of
from runtime.agent.doctor.findings import Point, warning
from runtime.agent.hardware.detectors import VENDORS
from runtime.agent.hardware.nvidia import PCI_VENDOR, SMI_PLACES
from runtime.agent.hardware.nvidia_by_smi import SMI
from runtime.agent.hardware.nvml_cards import VENDOR as NVIDIA
from runtime.agent.hardware.parsers import nvidia_smi
from runtime.agent.hardware.pci import DISPLAY_CLASSES, SYSFS, accelerators, bound_driver, is_virtual_function
from runtime.agent.hardware.vendors.plain import ROOT, Tool, is_signed


@dataclass(frozen=True)
class Known:
    """What the doctor looks for of one vendor; as :class:`~runtime.agent.hardware.vendors.plain.Vendor` says it."""

    name: str
    tools: Sequence[Tool]
    pci_vendors: Sequence[str]
    pci_classes: Sequence[str]
    signs: Sequence[str]


ALL = (
    Known(
        NVIDIA,
        (Tool(SMI, nvidia_smi.parse, SMI_PLACES, main=("-L",)),),
        (PCI_VENDOR,),
        DISPLAY_CLASSES,
        ("/dev/nvidiactl", "/dev/nvidia[0-9]*"),
    ),
    *(Known(each.name, each.tools, each.pci_vendors, each.pci_classes, each.signs) for each in VENDORS),
)

TO_MACHINES = ("vfio-pci", "pci-stub", "pciback")
"""Drivers that hold a device for a virtual machine."""
FREE_DRIVERS = ("nouveau", "nova", "nova_core")

SHOWN = 3
"""So many devices are named; the rest is counted."""


@dataclass(frozen=True)
class VendorFacts:
    """``devices``: PCI address -> the kernel's driver that has it, None when none has; without the functions that are
    made for virtual machines. ``signed``: the driver's own device files are here."""

    name: str
    devices: Mapping[str, Optional[str]] = field(default_factory=dict)
    signed: bool = False

    @property
    def here(self) -> bool:
        return bool(self.devices) or self.signed

    @property
    def driven(self) -> list[str]:
        """Devices that the vendor's tool can be expected to list."""
        return [at for at, driver in self.devices.items() if driver not in (None, *TO_MACHINES, *FREE_DRIVERS)]


def look_at_vendors(sysfs: Path = SYSFS, root: Path = ROOT) -> dict[str, VendorFacts]:
    """Every known vendor by name."""
    return {vendor.name: _look_at(vendor, sysfs, root) for vendor in ALL}


def _look_at(vendor: Known, sysfs: Path, root: Path) -> VendorFacts:
    plugged = [at for number in vendor.pci_vendors for at in accelerators(number, sysfs, vendor.pci_classes)]
    devices = {at: bound_driver(at, sysfs) for at in plugged if not is_virtual_function(at, sysfs)}
    return VendorFacts(vendor.name, devices, is_signed(vendor.signs, root))


def judge_devices(facts: VendorFacts, cards: int) -> list[Point]:
    """What is on PCI against what drives it, and against how many ``cards`` answer."""
    points: list[Point] = []
    idle = [at for at, driver in facts.devices.items() if driver is None]
    if idle:
        points.append(
            warning(
                f"{_devices(facts, idle)} without a driver in the kernel",
                "a driver that has them",
                f"install {facts.name}'s driver for this kernel and load it (modprobe {module_of(facts.name)}); "
                "dmesg says why it was not (another kernel, Secure Boot, firmware)",
            )
        )
    away = [at for at, driver in facts.devices.items() if driver in TO_MACHINES]
    if away:
        driver = str(facts.devices[away[0]])
        points.append(
            warning(
                f"{_devices(facts, away)} held for virtual machines ({driver})",
                f"{facts.name}'s driver",
                f"give them back to {facts.name}'s driver if tasks are to have them",
            )
        )
    free = [at for at, driver in facts.devices.items() if driver in FREE_DRIVERS]
    if free:
        driver = str(facts.devices[free[0]])
        points.append(
            warning(
                f"{_devices(facts, free)} driven by {driver}",
                f"{facts.name}'s driver",
                f"keep {driver} from loading (blacklist {driver}), install {facts.name}'s driver, and reboot",
            )
        )
    if 0 < cards < len(facts.driven):
        points.append(
            warning(
                f"{_devices(facts, facts.driven)}, but {cards} cards answer",
                f"{len(facts.driven)} cards",
                "look at dmesg for the one that is missing; drain the node and power it off and on",
            )
        )
    return points


def _devices(facts: VendorFacts, at: Sequence[str]) -> str:
    shown = ", ".join([*at[:SHOWN], *(["..."] if len(at) > SHOWN else [])])
    return f"{len(at)} device{'s' if len(at) > 1 else ''} of {facts.name} on PCI ({shown})"
