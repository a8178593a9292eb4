"""Hygon's DCUs: the table numbers them and tells shares of memory only; JSON beside it has amounts and bus ids.

No output of a tool that names a lost card is known: one that is gone is missed by its bus id. Old toolkits come with
a ``rocm-smi`` that prints what AMD's prints, so it counts only where the driver or a card of Hygon is.
"""

from __future__ import annotations

from typing import Optional

from runtime.agent.hardware.cards import by_uuid_or_bus
from runtime.agent.hardware.giving.description import Giving
from runtime.agent.hardware.giving.files import graphics
from runtime.agent.hardware.parsers import hy_smi
from runtime.agent.hardware.pci import DISPLAY_CLASSES
from runtime.agent.hardware.reading import CardReading
from runtime.agent.hardware.vendors.plain import Tool, Vendor, questions

CO_PROCESSOR = "0x0b40"

MEMORY = questions(("--showmeminfo", "vram", "--json"))
NAMES = questions(("--showproductname", "--showserial", "--showuniqueid", "--showbus", "--json"))


def by_bus_or_unique_id(card: CardReading) -> Optional[str]:
    return by_uuid_or_bus(card) or card.more.get("unique_id")


HYGON = Vendor(
    name="hygon",
    tools=(
        Tool(
            name="hy-smi",
            parse=hy_smi.parse,
            places=("/opt/hyhal/bin/hy-smi", "/usr/local/hyhal/bin/hy-smi"),
            beside=MEMORY,
            wide=NAMES,
        ),
        Tool(
            name="rocm-smi",
            parse=hy_smi.parse,
            places=("/opt/dtk*/bin/rocm-smi", "/opt/rocm/bin/rocm-smi"),
            beside=MEMORY,
            wide=NAMES,
            shared_name=True,
        ),
    ),
    pci_vendors=("0x1d94",),
    pci_classes=(*DISPLAY_CLASSES, CO_PROCESSOR),
    signs=("/dev/mkfd", "/opt/hyhal"),
    key=by_bus_or_unique_id,
    giving=Giving(
        files=graphics(),
        patterns=("/dev/dri/card[0-9]*", "/dev/dri/renderD[0-9]*"),
        control=("/dev/kfd", "/dev/mkfd"),
        variables=("HIP_VISIBLE_DEVICES",),
        mounts=("/opt/hyhal",),
        # Another filter before that one: the second would count what the first has left.
        owned=("ROCR_VISIBLE_DEVICES",),
    ),
)
