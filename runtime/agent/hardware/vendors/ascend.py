"""Huawei's Ascend cards: every chip is a device, and several may share a card and its bus id.

``npu-smi`` needs the driver's libraries in the loader's path. Its table has a word on each chip's health, so a sick
one is named; one that fell off the bus is missing from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from runtime.agent.hardware.cards import by_bus_and_chip
from runtime.agent.hardware.detector import FULL
from runtime.agent.hardware.giving.description import Card, Giving, Runtime
from runtime.agent.hardware.giving.files import numbered, told
from runtime.agent.hardware.parsers import npu_smi
from runtime.agent.hardware.reading import Reading
from runtime.agent.hardware.vendors.plain import Tool, Vendor

DRIVER = "/usr/local/Ascend/driver/lib64"
LIBRARIES = ":".join((DRIVER, f"{DRIVER}/driver", f"{DRIVER}/common"))


def boards(main: Reading) -> Sequence[Sequence[str]]:
    """The numbers that programs use; and a card's board tells the driver's version, and its serial number where it
    has one."""
    npus = dict.fromkeys(str(card.more["npu_id"]) for card in main.cards)
    return [("info", "-m"), *(("info", "-t", "board", "-i", npu) for npu in npus)]


def phy_id(card: Card) -> Optional[int]:
    """The number in the name of its device file. Tables without that column are of machines where a card is one chip
    and has its card's number."""
    said = card.tells.get("phy_id")
    return said if isinstance(said, int) else card.gpu.index


def logic_id(card: Card) -> Optional[int]:
    """The number that programs use for it on this host."""
    place = (card.tells.get("npu_id"), card.tells.get("chip_id"))
    for chip in card.tells.get("map", ()):
        if (chip["npu_id"], chip["chip_id"]) == place:
            return int(chip["logic_id"])
    return None


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
    giving=Giving(
        files=told("phy_id", "/dev/davinci{}", numbered("/dev/davinci")),
        patterns=("/dev/davinci[0-9]*",),
        control=("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
        variables=("ASCEND_RT_VISIBLE_DEVICES",),
        number=logic_id,
        mounts=(
            "/usr/local/dcmi",
            "/usr/local/bin/npu-smi",
            DRIVER,
            "/usr/local/Ascend/driver/version.info",
            "/etc/ascend_install.info",
        ),
        runtimes=(Runtime("ascend", "ASCEND_VISIBLE_DEVICES", number=phy_id),),
        owned=("ASCEND_RUNTIME_OPTIONS", "ASCEND_VNPU_SPECS"),
    ),
)
