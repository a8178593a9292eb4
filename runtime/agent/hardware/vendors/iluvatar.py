"""Iluvatar CoreX's cards: ``ixsmi``, which needs the libraries that lie beside it.

A sick card stays in the list with values that cannot be, so it is named; after a reset it vanishes, and all behind it
get other numbers. Some uuids are unreadable: the PCI address is what a card is known by.
"""

from __future__ import annotations

from runtime.agent.hardware.cards import by_bus_and_chip
from runtime.agent.hardware.giving.description import Giving, Runtime
from runtime.agent.hardware.giving.files import numbered
from runtime.agent.hardware.parsers import ixsmi
from runtime.agent.hardware.vendors.plain import Tool, Vendor, questions

LIBRARIES = "/usr/local/corex/lib64:/usr/local/corex/lib"

ILUVATAR = Vendor(
    name="iluvatar",
    tools=(
        Tool(
            name="ixsmi",
            parse=ixsmi.parse,
            places=("/usr/local/corex/bin/ixsmi", "/usr/local/corex-*/bin/ixsmi"),
            wide=questions(("-q", "-x")),
            environment={"LD_LIBRARY_PATH": LIBRARIES},
        ),
    ),
    pci_vendors=("0x1e3e",),
    signs=("/dev/iluvatar[0-9]*",),
    key=by_bus_and_chip,
    giving=Giving(
        # The tool's number of a card is its minor number.
        files=numbered("/dev/iluvatar"),
        patterns=("/dev/iluvatar[0-9]*",),
        variables=("CUDA_VISIBLE_DEVICES",),
        runtimes=(Runtime("iluvatar", "IX_VISIBLE_DEVICES"),),
        owned=("ILUVATAR_COREX_VISIBLE_DEVICES",),
    ),
)
