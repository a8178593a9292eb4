"""Biren's cards. A lost one is known by its absence only: the tool has no word for it."""

from __future__ import annotations

from runtime.agent.hardware.parsers import brsmi
from runtime.agent.hardware.vendors.plain import Tool, Vendor

BIREN = Vendor(
    name="biren",
    tools=(Tool(name="brsmi", parse=brsmi.parse, places=("/usr/bin/brsmi", "/opt/birentech/bin/brsmi")),),
    # Biren's own PCI vendor id is not in what we have; its device files are its sign.
    pci_vendors=(),
    signs=("/dev/biren-m", "/dev/biren/card_[0-9]*"),
)
