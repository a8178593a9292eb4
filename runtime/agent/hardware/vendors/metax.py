"""MetaX's cards: ``mx-smi``. The list keeps a card that cannot be used, with the reason, also where the table of an
older version has no state."""

from __future__ import annotations

from runtime.agent.hardware.cards import by_bus_and_chip
from runtime.agent.hardware.detector import FULL
from runtime.agent.hardware.giving.description import Giving
from runtime.agent.hardware.giving.files import graphics
from runtime.agent.hardware.parsers import mx_smi
from runtime.agent.hardware.vendors.plain import Tool, Vendor, questions

METAX = Vendor(
    name="metax",
    tools=(
        Tool(
            name="mx-smi",
            parse=mx_smi.parse,
            places=("/opt/mxdriver/bin/mx-smi", "/opt/maca/bin/mx-smi"),
            beside=questions(("-L",)),
        ),
    ),
    pci_vendors=("0x9999",),  # not assigned to them, but what their cards report
    signs=("/dev/mxcd",),
    key=by_bus_and_chip,
    loss_detection=FULL,
    giving=Giving(
        files=graphics(),
        patterns=("/dev/dri/card[0-9]*", "/dev/dri/renderD[0-9]*"),
        control=("/dev/mxcd",),
        # The second is for images that take the card for CUDA's: inside, both count alike.
        variables=("MACA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    ),
)
