"""Cards that containers of another control plane hold, beat by beat."""

from __future__ import annotations

from typing import Any

from runtime.protocol.hardware import GpuHolder
from runtime.protocol.heartbeat import Foreign, Heartbeat
from runtime.server.services.held import Held, merge


def beat(**members: Any) -> Heartbeat:
    return Heartbeat(1, "gpu-a", "i" * 8, 1, 1, **members)


def test_a_foreign_container_keeps_its_card_until_the_node_has_said_that_it_is_gone() -> None:
    held = Held("gpu-a")
    merge(held, beat(foreign=[Foreign("c1", gpus=["GPU-1"])], gpu_holders=[GpuHolder("GPU-2", ours=False)]))
    assert set(held.dirty_cards) == {"GPU-1", "GPU-2"}
    merge(held, beat(foreign=None, gpu_holders=[]))
    assert set(held.dirty_cards) == {"GPU-1"}, "a node that could not look has said nothing"
    merge(held, beat(foreign=[]))
    assert held.dirty_cards == {}
