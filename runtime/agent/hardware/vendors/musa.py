"""Moore Threads' cards. A lost one is known by its absence only: the tool has no word for it."""

from __future__ import annotations

from runtime.agent.hardware.parsers import mthreads_gmi
from runtime.agent.hardware.vendors.plain import Tool, Vendor

MUSA = Vendor(
    name="musa",
    tools=(
        Tool(
            name="mthreads-gmi",
            parse=mthreads_gmi.parse,
            places=("/usr/bin/mthreads-gmi", "/usr/local/musa/bin/mthreads-gmi"),
        ),
    ),
    pci_vendors=("0x1ed5",),
    signs=("/dev/mtgpu.[0-9]*",),
)
