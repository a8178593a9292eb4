"""Moore Threads' cards. A lost one is known by its absence only: the tool has no word for it."""

from __future__ import annotations

from runtime.agent.hardware.giving.description import Giving, Runtime
from runtime.agent.hardware.giving.files import beside, graphics, numbered
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
    giving=Giving(
        files=beside(numbered("/dev/mtgpu."), graphics(needed=False)),
        patterns=("/dev/mtgpu.[0-9]*", "/dev/dri/card[0-9]*", "/dev/dri/renderD[0-9]*"),
        variables=("MUSA_VISIBLE_DEVICES",),
        mounts=("/usr/bin/mthreads-gmi",),
        runtimes=(Runtime("mthreads", "MTHREADS_VISIBLE_DEVICES", none="none"),),
    ),
)
