"""Biren's cards. A lost one is known by its absence only: the tool has no word for it."""

from __future__ import annotations

from runtime.agent.hardware.giving.description import Giving
from runtime.agent.hardware.giving.files import numbered, unsplit
from runtime.agent.hardware.parsers import brsmi
from runtime.agent.hardware.vendors.plain import Tool, Vendor

BIREN = Vendor(
    name="biren",
    tools=(Tool(name="brsmi", parse=brsmi.parse, places=("/usr/bin/brsmi", "/opt/birentech/bin/brsmi")),),
    # Biren's own PCI vendor id is not in what we have; its device files are its sign.
    pci_vendors=(),
    signs=("/dev/biren-m", "/dev/biren/card_[0-9]*"),
    giving=Giving(
        # Every instance of a split card has a file of its own, whose number is not the card's.
        files=unsplit("svi", ("Disabled",), numbered("/dev/biren/card_")),
        patterns=("/dev/biren/card_[0-9]*",),
        control=("/dev/biren-m",),
        variables=("BIREN_VISIBLE_DEVICES",),
        mounts=("/usr/bin/brsmi", "/usr/local/birensupa/driver/biren-smi/lib"),
        owned=("BR_PHY_CARDS",),
    ),
)
