"""Which cards a sleeping task gets back: the very ones that it had, or none; the decision and its reasons agree."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runtime.protocol.hardware import Gpu, GpuCapability
from runtime.protocol.nodes import CardHealth, NodeState
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement import waking
from runtime.server.services.placement.model import CardNeed, Held, Site, sites_of
from runtime.server.services.placement.waking import Sleeper, same_cards

WHOLE = tuple(Gpu(f"GPU-{number}", "nvidia", number, "NVIDIA H100") for number in range(3))
SLICES = tuple(
    Gpu(f"MIG-{number}", "nvidia", number, parent_uuid="GPU-9", profile="1g.10gb", gi_id=number, ci_id=0)
    for number in (1, 2)
)
PARENT = Gpu("GPU-9", "nvidia", 9)


def site(held: tuple[Held, ...] = (), cards: tuple[Gpu, ...] = (*WHOLE, PARENT, *SLICES), **health: CardHealth) -> Site:
    known = {card.uuid: CardHealth.OK for card in cards} | {
        name.replace("_", "-"): word for name, word in health.items()
    }
    view = NodeView("gpu-a", NodeState.ONLINE, gpus=cards, card_health=known)
    return sites_of([view], (), held, 4)["gpu-a"]


def with_mig(uuid: str) -> Site:
    view = dataclasses.replace(site().view, capabilities={uuid: GpuCapability(uuid, mig_capable=True)})
    return sites_of([view], (), (), 4)["gpu-a"]


def sleeper(*uuids: str, need: CardNeed | None = None) -> Sleeper:
    return Sleeper("u1", 1, "gpu-a", [{"uuid": uuid} for uuid in uuids], need or CardNeed(len(uuids)))


def taken(uuid: str, slot: int = 0, mode: str = "whole", parent: str | None = None) -> Held:
    return Held("gpu-a", parent or uuid, slot, uuid, mode)


SLICE = CardNeed(1, slice="1g.10gb")
MPS = CardNeed(1, mps=True)
ROWS: list[tuple[Sleeper, Site, str | None]] = [
    (sleeper("GPU-1"), site(), None),
    (sleeper("GPU-0", "GPU-2"), site(), None),
    (sleeper("GPU-1"), site((taken("GPU-0"),)), None),
    (sleeper("GPU-1"), site((taken("GPU-1"),)), "free"),
    (sleeper("GPU-0", "GPU-1"), site((taken("GPU-1"),)), "free"),
    (sleeper("GPU-1"), site(GPU_1=CardHealth.LOST), "health"),
    (sleeper("GPU-1"), site(GPU_1=CardHealth.DIRTY), "health"),
    (sleeper("GPU-1"), site(GPU_1=CardHealth.UNKNOWN), "health"),
    (sleeper("GPU-7"), site(), "uuids"),
    (sleeper("GPU-1"), site(cards=WHOLE[2:]), "uuids"),
    (sleeper("GPU-9"), site(), "slice"),
    (sleeper("GPU-1"), with_mig("GPU-1"), "slice"),
    (sleeper("MIG-1", need=CardNeed(1, slice="1g.10gb")), with_mig("GPU-9"), None),
    (sleeper("MIG-1", need=CardNeed(1, slice="2g.20gb")), site(), "slice"),
    (sleeper("MIG-1", need=SLICE), site(), None),
    (sleeper("MIG-1", need=SLICE), site((taken("MIG-2", 129, "mig", "GPU-9"),)), None),
    (sleeper("MIG-1", need=SLICE), site((taken("MIG-1", 65, "mig", "GPU-9"),)), "free"),
    (sleeper("MIG-1", need=SLICE), site((taken("GPU-9"),)), "free"),
    (sleeper("MIG-1", need=SLICE), site(GPU_9=CardHealth.LOST), "health"),
    (sleeper("GPU-1", need=MPS), site((taken("GPU-1", 1, "mps"),)), None),
    (sleeper("GPU-1", need=MPS), site((taken("GPU-1"),)), "free"),
]


@pytest.mark.parametrize(("asleep", "there", "lacks"), ROWS)
def test_the_same_cards_or_none(asleep: Sleeper, there: Site, lacks: str | None) -> None:
    said = waking.explain(asleep, there, {"GPU-1": ["task t2"], "GPU-9": ["task t3"]})
    picks = same_cards(asleep, there)
    missing = [one for one in said.constraints if not one.ok]
    assert [one.code for one in missing] == ([lacks] if lacks else [])
    assert (picks is None) is (lacks is not None)
    if picks is not None:
        assert [pick.card.uuid for pick in picks] == [card["uuid"] for card in asleep.cards]
        again: Any = same_cards(asleep, there)
        assert again is None or asleep.need.mps, "what the round gave away is not given away twice"
    elif lacks == "free":
        assert "held by task t" in missing[0].text


def test_a_node_that_nobody_knows_lacks_every_card() -> None:
    said = waking.explain(sleeper("GPU-0", "GPU-1"), None, {})
    assert [(one.code, one.ok) for one in said.constraints] == [("uuids", False)] * 2
