"""Enflame's GCUs: ``efsmi``. Its table has neither the memory in use nor a word on health: ``-q`` has both.

SR-IOV functions share a serial number, so a card is known by its PCI address.
"""

from __future__ import annotations

from runtime.agent.hardware.cards import by_bus_and_chip
from runtime.agent.hardware.giving.description import Giving
from runtime.agent.hardware.giving.files import numbered
from runtime.agent.hardware.parsers import efsmi
from runtime.agent.hardware.vendors.plain import Tool, Vendor, questions

ENFLAME = Vendor(
    name="enflame",
    tools=(
        Tool(
            name="efsmi",
            parse=efsmi.parse,
            places=("/usr/bin/efsmi", "/usr/local/efsmi/efsmi"),
            beside=questions(("-q",)),
        ),
    ),
    pci_vendors=("0x1e36",),
    signs=("/dev/gcu[0-9]*",),
    key=by_bus_and_chip,
    giving=Giving(
        files=numbered("/dev/gcu"),
        patterns=("/dev/gcu[0-9]*",),
        variables=("TOPS_VISIBLE_DEVICES", "ENFLAME_VISIBLE_DEVICES"),
        mounts=("/usr/bin/efsmi",),
    ),
)
