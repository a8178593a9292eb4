"""Kunlunxin's XPUs: ``xpu-smi`` of the P800, or the older ``xpu_smi``. Intel has a tool of the former name too.

A K200 is two devices with one PCI address and one serial number, known by their device nodes. No text of a lost card
is known: one that is gone is missed.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Optional

from runtime.agent.hardware.giving.description import Giving
from runtime.agent.hardware.giving.files import numbered, told
from runtime.agent.hardware.parsers import xpu_smi
from runtime.agent.hardware.pci import normal_bus_id
from runtime.agent.hardware.reading import CardReading
from runtime.agent.hardware.vendors.plain import Tool, Vendor, questions


def by_bus_and_node(card: CardReading) -> Optional[str]:
    """The PCI address, which both tools tell; with the device node where the table has one."""
    bus_id, node = normal_bus_id(card.bus_id), card.more.get("device_node")
    return bus_id if bus_id is None or node is None else f"{bus_id}/{PurePosixPath(node).name}"


LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/xpu/lib64", "/usr/local/xpu/lib")
LIBRARIES = ("libxpunvidia-ml.so.1", "libxpuml.so")
"""What the tool needs of the driver, in its newer and its older form."""


KUNLUN = Vendor(
    name="kunlun",
    tools=(
        Tool(
            name="xpu-smi",
            parse=xpu_smi.parse,
            places=("/usr/local/xpu/bin/xpu-smi",),
            wide=questions(("-q",)),
            shared_name=True,
        ),
        Tool(name="xpu_smi", parse=xpu_smi.parse, places=("/usr/local/xpu/bin/xpu_smi",)),
    ),
    pci_vendors=("0x1d22",),
    signs=("/dev/xpuctrl", "/dev/xpu[0-9]*"),
    key=by_bus_and_node,
    giving=Giving(
        files=told("device_node", "/dev/xpu{}", numbered("/dev/xpu")),
        patterns=("/dev/xpu[0-9]*",),
        control=("/dev/xpuctrl",),
        # The older library's, and that of images which take the card for CUDA's: inside, all count alike.
        variables=("XPU_VISIBLE_DEVICES", "CXPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        mounts=(
            "/usr/local/bin/xpu-smi",
            "/usr/local/xpu/bin/xpu-smi",
            "/usr/bin/xpu_smi",
            "/usr/local/xpu/bin/xpu_smi",
            *(f"{folder}/{library}" for folder in LIBRARY_FOLDERS for library in LIBRARIES),
        ),
    ),
)
