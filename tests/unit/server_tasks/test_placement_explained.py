"""Why a task waits: the decision and its explanation never disagree."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runtime.protocol.heartbeat import Gpu
from runtime.protocol.nodes import CardHealth, NodeState
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement import explain
from runtime.server.services.placement.decide import decide
from runtime.server.services.placement.model import Candidate, CardNeed, Held, Need, sites_of

CARDS = tuple(Gpu(f"GPU-{number}", "nvidia", number, "NVIDIA H100", memory_total_mib=81559) for number in range(2))


def view(node_id: str = "gpu-a", **facts: Any) -> NodeView:
    known = {
        "state": NodeState.ONLINE,
        "docker_available": True,
        "slots_total": 4,
        "cpu_cores": 8,
        "memory_total_mib": 1000,
        "gpus": CARDS,
        "card_health": {card.uuid: CardHealth.OK for card in CARDS},
    }
    return NodeView(node_id, **{**known, **facts})


def wants(need: Need, **facts: Any) -> Candidate:
    return Candidate("u1", "t1", 0, 50, "2026-01-01T00:00:00.000Z", need, **facts)


TAKEN = Held("gpu-a", "GPU-0", 0, "GPU-0", "whole")

ROWS = [
    (Need(), {}, (), None),
    (Need(), {"state": NodeState.LOST}, (), "online"),
    (Need(node_selector=(("zone", "a"),)), {"labels": {"zone": "b"}}, (), "labels"),
    (Need(cpus=9), {}, (), "cpus"),
    (Need(cards=CardNeed(1, vendor="hygon")), {}, (), "vendor"),
    (Need(cards=CardNeed(2)), {}, (TAKEN,), "free"),
    (Need(cards=CardNeed(2, same_nvlink_domain=True)), {}, (), "nvlink_domain"),
    (Need(cards=CardNeed(1)), {"card_health": {}}, (), "health"),
]


@pytest.mark.parametrize(("need", "facts", "held", "code"), ROWS)
def test_the_first_thing_to_change_is_named(
    need: Need, facts: dict[str, Any], held: tuple[Held, ...], code: str | None
) -> None:
    task = wants(need)
    found = explain.nodes(task, sites_of([view(**facts)], (), held, 4))
    placed = decide([task], sites_of([view(**facts)], (), held, 4))
    assert (found[0].distance == 0) is bool(placed)
    change = explain.smallest_change(found)
    assert (change.code if change else None) == code
    if change is not None:
        assert change.node_id == "gpu-a"
        assert change.text.startswith("on gpu-a: ")
        assert "{" not in explain.summary(found).replace("{'zone'", "")


def test_every_constraint_is_asked_and_the_nearest_miss_comes_first() -> None:
    far = view("gpu-a", state=NodeState.LOST, schedulable=False, slots_total=0)
    near = view("gpu-b", slots_total=0)
    found = explain.nodes(wants(Need(cards=CardNeed(1))), sites_of([far, near], (), (), 4))
    assert [(node.node_id, node.distance) for node in found] == [("gpu-b", 1), ("gpu-a", 3)]
    codes = [one.code for one in found[0].constraints]
    assert codes == [
        "online",
        "schedulable",
        "driver",
        "collector",
        "slots",
        "slice",
        "vendor",
        "health",
        "cards",
        "free",
    ]
    assert all(one.text for one in found[0].constraints)


def test_cards_that_have_it_all_are_not_cards_that_each_have_some() -> None:
    odd = (CARDS[0], dataclasses.replace(CARDS[1], model="NVIDIA L4", gpu_class="c"))
    need = Need(cards=CardNeed(1, model="*H100*", gpu_class="c"))
    health = {card.uuid: CardHealth.OK for card in odd}
    found = explain.nodes(wants(need), sites_of([view(gpus=odd, card_health=health)], (), (), 4))
    assert [one.code for one in found[0].constraints if not one.ok] == ["cards", "free"]


def test_an_excluded_node_says_so() -> None:
    task = wants(Need(), excluded=frozenset({"gpu-a"}))
    found = explain.nodes(task, sites_of([view("gpu-a"), view("gpu-b")], (), (), 4))
    assert [(node.node_id, node.distance) for node in found] == [("gpu-b", 0), ("gpu-a", 1)]
    assert explain.summary(found).startswith("It fits on gpu-b")
    assert explain.summary([]) == "No node is registered."
