"""Virtual cards: for nodes without any accelerator, so that a fleet can be tried without one.

They are reported as what they are and given only to tasks that ask for ``vendor: "virtual"``.
"""

from __future__ import annotations

from runtime.agent.hardware.detector import Cards
from runtime.protocol.hardware import Gpu
from runtime.protocol.vendors import VIRTUAL

VENDOR = VIRTUAL
MODEL = "virtual card"


def virtual_cards(count: int, node_id: str) -> Cards:
    """``count`` virtual cards; their uuids follow from the node, so they are the same at every start."""
    return Cards(
        [
            Gpu(uuid=f"virtual-{node_id}-{index}", vendor=VENDOR, index=index, model=MODEL, gpu_class="virtual-card")
            for index in range(count)
        ],
        source=VENDOR,
    )
