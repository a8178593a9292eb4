"""Huawei's Ascend cards: every chip is a device, and several may share a card and its bus id.

``npu-smi`` needs the driver's libraries in the loader's path. Its table has a word on each chip's health, so a sick
one is named; one that fell off the bus is missing from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.agent.hardware.cards import by_bus_and_chip
from runtime.agent.hardware.detector import FULL
from runtime.agent.hardware.parsers import npu_smi
from runtime.agent.hardware.reading import Reading
from runtime.agent.hardware.vendors.plain import Tool, Vendor

DRIVER = "/usr/local/Ascend/driver/lib64"
LIBRARIES = ":".join((DRIVER, f"{DRIVER}/driver", f"{DRIVER}/common"))


def boards(main: Reading) -> Sequence[Sequence[str]]:
    """A card's board tells the driver's version, and its serial number where it has one."""
    return [
        ("info", "-t", "board", "-i", npu) for npu in dict.fromkeys(str(card.more["npu_id"]) for card in main.cards)
    ]


ASCEND = Vendor(
    name="ascend",
    tools=(
        Tool(
            name="npu-smi",
            parse=npu_smi.parse,
            places=("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi"),
            main=("info",),
            wide=boards,
            environment={"LD_LIBRARY_PATH": LIBRARIES},
        ),
    ),
    pci_vendors=("0x19e5",),
    # The display of Huawei's own servers is Huawei's too.
    pci_classes=("0x1200",),
    signs=("/dev/davinci[0-9]*", "/dev/davinci_manager"),
    key=by_bus_and_chip,
    loss_detection=FULL,
)
