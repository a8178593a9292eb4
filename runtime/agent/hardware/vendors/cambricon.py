"""Cambricon's MLU cards.

``cnmon info`` alone has a verdict on health and the uuid, and the bus id of drivers before v5; the plain table is asked
first, since it is there with every driver.
"""

from __future__ import annotations

from runtime.agent.hardware.detector import FULL
from runtime.agent.hardware.giving.description import Giving, Runtime
from runtime.agent.hardware.giving.files import beside, numbered, where_there
from runtime.agent.hardware.parsers import cnmon
from runtime.agent.hardware.vendors.plain import Tool, Vendor, questions

CAMBRICON = Vendor(
    name="cambricon",
    tools=(
        Tool(
            name="cnmon",
            parse=cnmon.parse,
            places=("/usr/bin/cnmon", "/usr/local/neuware/bin/cnmon"),
            # Each time for the health, and kept for what lasts: a card must not change its uuid when one is refused.
            beside=questions(("info",)),
            wide=questions(("info",)),
        ),
    ),
    pci_vendors=("0xcabc",),
    signs=("/dev/cambricon_ctl", "/dev/cambricon_dev[0-9]*"),
    loss_detection=FULL,
    giving=Giving(
        files=beside(numbered("/dev/cambricon_dev"), where_there("/dev/cambricon_ipcm{}")),
        patterns=("/dev/cambricon_dev[0-9]*", "/dev/cambricon_ipcm[0-9]*"),
        control=("/dev/cambricon_ctl",),
        variables=("MLU_VISIBLE_DEVICES",),
        mounts=("/usr/bin/cnmon",),
        runtimes=(Runtime("cambricon", "CAMBRICON_VISIBLE_DEVICES"),),
    ),
)
