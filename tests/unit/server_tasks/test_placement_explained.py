"""Why a task waits: the decision and its explanation never disagree."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runtime.protocol.hardware import Gpu, GpuCapability
from runtime.protocol.nodes import CardHealth, NodeState
from runtime.server.services.card_troubles import Trouble
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
        "mig_mode",
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


LOST = Trouble("GPU-1", CardHealth.LOST, "2026-01-01T00:00:00.000Z", "NVML code 15", "it comes back by itself")


def sick(**facts: Any) -> NodeView:
    health = {"GPU-0": CardHealth.OK, "GPU-1": CardHealth.LOST}
    return view(card_health=health, card_troubles={"GPU-1": LOST}, **facts)


def test_a_task_that_names_a_lost_card_is_told_of_that_card() -> None:
    need = Need(cards=CardNeed(1, uuids=("GPU-1",)))
    found = explain.nodes(wants(need), sites_of([sick(), view("gpu-0", gpus=(), card_health={})], (), (), 4))
    assert [node.node_id for node in found] == ["gpu-a", "gpu-0"], "the node that has the card is the nearest"
    failing = {one.code: one for one in found[0].constraints if not one.ok}
    assert list(failing) == ["health", "cards", "free"]
    text = "card GPU-1 is lost since 2026-01-01T00:00:00.000Z (NVML code 15)"
    assert failing["health"].text == f"0 cards are known to be well, 1 wanted: {text}"
    assert failing["health"].evidence == [
        {
            "card": "GPU-1",
            "have": "lost",
            "since": "2026-01-01T00:00:00.000Z",
            "reason": "NVML code 15",
            "help": "it comes back by itself",
        }
    ]
    assert failing["cards"].evidence == [{"card": "GPU-1", "lacks": ["health"]}]
    assert text in explain.summary(found)
    change = explain.smallest_change(found)
    assert change is not None and change.code == "health" and change.text.endswith("; it comes back by itself")
    elsewhere = {one.code: one for one in found[1].constraints}
    assert elsewhere["uuids"].evidence == [{"card": "GPU-1", "have": "not on this node"}]


def test_a_task_that_wants_any_card_is_told_of_those_that_are_not_well() -> None:
    found = explain.nodes(wants(Need(cards=CardNeed(2))), sites_of([sick()], (), (), 4))
    failing = {one.code: one for one in found[0].constraints if not one.ok}
    assert "card GPU-1 is lost since" in failing["health"].text and "GPU-0" not in failing["health"].text
    one_is_enough = explain.nodes(wants(Need(cards=CardNeed(1))), sites_of([sick()], (), (), 4))
    (health,) = [one for one in one_is_enough[0].constraints if one.code == "health"]
    assert health.ok and ":" not in health.text and [row["card"] for row in health.evidence] == ["GPU-1"]


def test_well_cards_of_another_kind_do_not_hide_the_sick_one() -> None:
    slices = tuple(Gpu(f"MIG-{n}", "nvidia", parent_uuid="GPU-1", profile="1g.10gb", gi_id=n) for n in (1, 2))
    lost = dict.fromkeys(("GPU-1", "MIG-1", "MIG-2"), CardHealth.LOST)
    cut = view(gpus=(*CARDS, *slices), card_health={"GPU-0": CardHealth.OK, **lost}, card_troubles={"GPU-1": LOST})
    (node,) = explain.nodes(wants(Need(cards=CardNeed(1, slice="1g.10gb"))), sites_of([cut], (), (), 4))
    failing = [one for one in node.constraints if not one.ok]
    assert [one.code for one in failing] == ["health", "cards", "free"]
    assert failing[0].text.startswith("0 cards are known to be well, 1 wanted: card MIG-1 is lost")
    none_of_the_kind = explain.nodes(wants(Need(cards=CardNeed(1, slice="7g.80gb"))), sites_of([cut], (), (), 4))
    assert "health" not in [one.code for one in none_of_the_kind[0].constraints if not one.ok]


@pytest.mark.parametrize(
    ("need", "code", "evidence"),
    [
        (CardNeed(1, slice="1g.10gb"), "slice", [{"have": "whole card", "cards": ["GPU-0", "GPU-1"]}]),
        (CardNeed(1, vendor="hygon"), "vendor", [{"have": "nvidia", "cards": ["GPU-0", "GPU-1"]}]),
        (CardNeed(1, model="*L4"), "model", [{"have": "NVIDIA H100", "cards": ["GPU-0", "GPU-1"]}]),
        (CardNeed(1, gpu_class="x"), "class", [{"have": None, "cards": ["GPU-0", "GPU-1"]}]),
        (CardNeed(1, min_memory_mib=90000), "gpu_memory", [{"have": 81559, "cards": ["GPU-0", "GPU-1"]}]),
        (CardNeed(1, uuids=("GPU-9",)), "uuids", [{"card": "GPU-9", "have": "not on this node"}]),
        (CardNeed(1, mps=True), "mps", [{"have": "no MPS, as far as is known", "cards": ["GPU-0", "GPU-1"]}]),
    ],
)
def test_every_constraint_on_cards_says_its_evidence(need: CardNeed, code: str, evidence: list[dict[str, Any]]) -> None:
    found = explain.nodes(wants(Need(cards=need)), sites_of([view()], (), (), 4))
    (one,) = [one for one in found[0].constraints if one.code == code]
    assert not one.ok and one.evidence == evidence


def test_a_card_in_mig_mode_says_what_to_do() -> None:
    mig = view(gpus=CARDS[:1], capabilities={"GPU-0": GpuCapability("GPU-0", mig_capable=True)})
    (node,) = explain.nodes(wants(Need(cards=CardNeed(1))), sites_of([mig], (), (), 4))
    failing = [one for one in node.constraints if not one.ok]
    assert [one.code for one in failing] == ["mig_mode", "cards", "free"]
    assert failing[0].text == (
        "0 cards are not in MIG mode, 1 wanted: card GPU-0 is in MIG mode: it is given in slices only; ask for "
        "`slice`, or turn MIG off"
    )
    assert failing[0].evidence == [{"have": "MIG mode on", "cards": ["GPU-0"]}]


def test_the_smallest_change_names_what_else_is_to_change_and_one_card_is_one() -> None:
    need = Need(cards=CardNeed(2, vendor="nvidia"))
    one = view(gpus=CARDS[:1])
    (node,) = explain.nodes(wants(need), sites_of([one], (), (), 4))
    change = explain.smallest_change([node])
    assert change is not None
    assert change.text == (
        "on gpu-a: 1 card has the shape that is wanted (whole card), 2 wanted "
        "(and then: mig_mode, vendor, health, cards, free)"
    )
    assert "1 card is of vendor nvidia, 2 wanted" in [one.text for one in node.constraints]


def test_who_holds_a_card_is_named() -> None:
    need, holders = Need(cards=CardNeed(1, uuids=("GPU-0",))), {"gpu-a": {"GPU-0": ["task t2"]}}
    (node,) = explain.nodes(wants(need), sites_of([view()], (), (TAKEN,), 4), holders)
    (free,) = [one for one in node.constraints if not one.ok]
    assert free.text == "0 of those cards are free, 1 wanted: GPU-0 is held by task t2"
    assert free.evidence == [{"card": "GPU-0", "held_by": ["task t2"]}]


def test_a_failing_card_tool_is_quoted() -> None:
    broken = view(collector_failing=True, collector_error="nvidia-smi did not answer in 10 s")
    (node,) = explain.nodes(wants(Need(cards=CardNeed(1))), sites_of([broken], (), (), 4))
    (collector,) = [one for one in node.constraints if not one.ok]
    assert collector.code == "collector" and "nvidia-smi did not answer in 10 s" in collector.text


def test_an_excluded_node_says_so() -> None:
    task = wants(Need(), excluded=frozenset({"gpu-a"}))
    found = explain.nodes(task, sites_of([view("gpu-a"), view("gpu-b")], (), (), 4))
    assert [(node.node_id, node.distance) for node in found] == [("gpu-b", 0), ("gpu-a", 1)]
    assert explain.summary(found).startswith("It fits on gpu-b")
    assert explain.summary([]) == "No node is registered."
