"""Where tasks go: every constraint on its own, the order, and what 10,000 tasks cost."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from typing import Any

import pytest

from runtime.protocol.hardware import Gpu, GpuCapability
from runtime.protocol.nodes import CardHealth, Cordon, NodeState
from runtime.protocol.states import Driver
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement.constraints import CARDS, LEFT, NODE
from runtime.server.services.placement.decide import decide
from runtime.server.services.placement.model import (
    Candidate,
    CardNeed,
    Held,
    Need,
    Occupant,
    need_of,
    sites_of,
)

MPS_MAX = 4


def card(number: int = 0, **facts: Any) -> Gpu:
    known = {
        "uuid": f"GPU-{number}",
        "vendor": "nvidia",
        "model": "NVIDIA H100 80GB HBM3",
        "gpu_class": "nvidia-h100-80gb-hbm3-80g",
        "memory_total_mib": 81559,
    }
    return Gpu(**{**known, **facts})


def node(node_id: str = "gpu-a", cards: tuple[Gpu, ...] = (card(0), card(1)), **facts: Any) -> NodeView:
    known = {
        "state": NodeState.ONLINE,
        "docker_available": True,
        "exec_mode": "docker",
        "slots_total": 64,
        "cpu_cores": 32,
        "memory_total_mib": 1000,
        "gpus": cards,
        "card_health": {one.uuid: CardHealth.OK for one in cards},
    }
    return NodeView(node_id=node_id, **{**known, **facts})


def wants(need: Need, uid: str = "u1", **facts: Any) -> Candidate:
    known = {"task_id": uid, "attempt": 0, "priority": 50, "created_at": "2026-01-01T00:00:00.000Z"}
    return Candidate(uid=uid, need=need, **{**known, **facts})


def placed(
    views: list[NodeView],
    *candidates: Candidate,
    occupants: tuple[Occupant, ...] = (),
    held: tuple[Held, ...] = (),
) -> dict[str, str]:
    made = decide(candidates, sites_of(views, occupants, held, MPS_MAX))
    return {one.candidate.uid: one.node_id for one in made}


ONE = Need(cards=CardNeed(1))

CORDON = Cordon("memory test", "ann", "2026-01-01T00:00:00.000Z")

NODE_ROWS = [
    ("online", Need(), {"state": NodeState.UNREACHABLE}),
    ("online", Need(), {"state": NodeState.LOST}),
    ("online", Need(), {"state": NodeState.OFFLINE}),
    ("schedulable", Need(), {"schedulable": False, "cordon": CORDON}),
    ("schedulable", Need(), {"draining": True}),
    ("driver", Need(), {"docker_available": False}),
    ("driver", Need(), {"docker_available": None}),
    ("driver", Need(driver=Driver.PROCESS), {"process_driver": False}),
    ("node_id", Need(node_id="gpu-b"), {}),
    ("labels", Need(node_selector=(("zone", "a"),)), {"labels": {"zone": "b"}}),
    ("labels", Need(node_selector=(("zone", "a"),)), {"labels": {}}),
    ("collector", ONE, {"collector_failing": True}),
]


@pytest.mark.parametrize(("code", "need", "facts"), NODE_ROWS)
def test_a_node_that_does_not_do_is_named_by_one_constraint(code: str, need: Need, facts: dict[str, Any]) -> None:
    bad = node(**facts)
    assert placed([bad], wants(need)) == {}
    site = sites_of([bad], (), (), MPS_MAX)["gpu-a"]
    failing = [one for one in (*NODE, *LEFT) if one.wants(need) and not one.holds(need, site)]
    assert [one.code for one in failing] == [code]
    assert "{" not in failing[0].text(need, site).replace("{'zone'", "")


LEFT_ROWS = [
    ("slots", Need(), {"slots_total": 1}),
    ("cpus", Need(cpus=2), {"cpu_cores": 3}),
    ("cpus", Need(cpus=2), {"cpu_cores": None}),
    ("memory", Need(memory_mib=600), {}),
    ("memory", Need(memory_mib=1), {"memory_total_mib": None}),
    ("host_ports", Need(host_ports=(8080,)), {}),
]


@pytest.mark.parametrize(("code", "need", "facts"), LEFT_ROWS)
def test_what_is_used_up_is_not_given_twice(code: str, need: Need, facts: dict[str, Any]) -> None:
    view = node(**facts)
    occupant = Occupant("gpu-a", Need(cpus=2, memory_mib=500, host_ports=(8080,)))
    assert placed([view], wants(need), occupants=(occupant,)) == {}
    site = sites_of([view], (occupant,), (), MPS_MAX)["gpu-a"]
    failing = [one for one in LEFT if one.wants(need) and not one.holds(need, site)]
    assert [one.code for one in failing] == [code]
    assert failing[0].text(need, site)


def test_limits_count_what_the_decision_itself_has_placed() -> None:
    need = Need(cpus=20, memory_mib=600, host_ports=(80,))
    assert placed([node("gpu-a"), node("gpu-b")], wants(need, "u1"), wants(need, "u2"), wants(need, "u3")) == {
        "u1": "gpu-a",
        "u2": "gpu-b",
    }


@pytest.mark.parametrize(
    ("need", "first"),
    [
        (Need(), "gpu-a"),
        (Need(model="/data/m"), "gpu-d"),
        (Need(model="/data/m", engine="sglang"), "gpu-c"),
        (Need(model="org/other"), "gpu-c"),
        (Need(model="/data/m", engine="tgi"), "gpu-b"),
    ],
)
def test_a_model_goes_where_engine_and_model_are_before_where_least_is_done(need: Need, first: str) -> None:
    views = [
        node("gpu-a"),
        node("gpu-b", models=frozenset({"/data/m"}), engines=frozenset()),
        node("gpu-c", models=frozenset({"org/other"}), engines=frozenset({"sglang"})),
        node("gpu-d", models=frozenset({"/data/m"}), engines=frozenset({"vllm"})),
    ]
    busy = tuple(Occupant(f"gpu-{name}", Need()) for name in "bcd")
    assert placed(views, wants(need), occupants=busy) == {"u1": first}
    assert placed(views[:1], wants(need)) == {"u1": "gpu-a"}, "a wish, no condition: models lie elsewhere, too"


def test_the_wishes_of_a_task_without_an_image() -> None:
    spec = {"driver": "docker", "image": None, "model": "/data/m", "engine": "vllm"}
    assert (need_of(spec).model, need_of(spec).engine) == ("/data/m", "vllm")
    assert need_of({**spec, "image": "busybox"}) == Need(image="busybox:latest")


SLICE = card(5, uuid="MIG-1", parent_uuid="GPU-0", profile="1g.10gb", gi_id=7, ci_id=0, memory_total_mib=9984)

CARD_ROWS = [
    ("vendor", CardNeed(1, vendor="hygon"), card()),
    ("vendor", CardNeed(1), card(vendor="virtual")),
    ("vendor", CardNeed(1, model="H*"), card(vendor="virtual", model="H1")),
    ("model", CardNeed(1, model="H200*"), card()),
    ("model", CardNeed(1, model="*H100*"), card(model=None)),
    ("class", CardNeed(1, gpu_class="nvidia-l4-24g"), card()),
    ("gpu_memory", CardNeed(1, min_memory_mib=90000), card()),
    ("gpu_memory", CardNeed(1, min_memory_mib=1), card(memory_total_mib=None)),
    ("uuids", CardNeed(1, uuids=("GPU-9",)), card()),
    ("slice", CardNeed(1, slice="1g.10gb"), card()),
    ("slice", CardNeed(1, slice="2g.20gb"), SLICE),
    ("mps", CardNeed(1, mps=True), card()),
]


@pytest.mark.parametrize(("code", "need", "only"), CARD_ROWS)
def test_a_card_that_does_not_do_is_named_by_one_constraint(code: str, need: CardNeed, only: Gpu) -> None:
    parent = (card(0),) if only.parent_uuid else ()
    view = node(cards=(*parent, only))
    assert placed([view], wants(Need(cards=need))) == {}
    site = sites_of([view], (), (), MPS_MAX)["gpu-a"]
    failing = [one.code for one in CARDS if one.wants(need) and not one.holds(only, need, site)]
    assert failing == [code]


@pytest.mark.parametrize("health", [health for health in CardHealth if health is not CardHealth.OK])
def test_only_cards_known_to_be_well_are_given(health: CardHealth) -> None:
    assert placed([node(cards=(card(0),), card_health={"GPU-0": health})], wants(ONE)) == {}
    assert placed([node(cards=(card(0),), card_health={})], wants(ONE)) == {}


@pytest.mark.parametrize(("mig", "given"), [(True, False), (False, True), (None, True)])
def test_a_card_in_mig_mode_is_given_in_slices_only(mig: bool | None, given: bool) -> None:
    """CUDA finds no device by the UUID of such a card, cut or not."""
    known = {"GPU-0": GpuCapability("GPU-0", mig_capable=mig)}
    uncut = node(cards=(card(0),), capabilities=known)
    assert bool(placed([uncut], wants(ONE))) is given
    cut = node(cards=(card(0), SLICE), capabilities=known)
    assert placed([cut], wants(ONE)) == {}
    assert placed([cut], wants(Need(cards=CardNeed(1, slice="1g.10gb")))) != {}


def test_a_slice_of_a_lost_card_is_not_given() -> None:
    view = node(cards=(card(0), SLICE), card_health={"GPU-0": CardHealth.LOST, "MIG-1": CardHealth.OK})
    assert placed([view], wants(Need(cards=CardNeed(1, slice="1g.10gb")))) == {}


@pytest.mark.parametrize(
    ("need", "matches"),
    [
        (CardNeed(1, model="*h100*"), True),
        (CardNeed(1, vendor="nvidia", gpu_class="nvidia-h100-80gb-hbm3-80g", min_memory_mib=81559), True),
        (CardNeed(2, uuids=("GPU-1", "GPU-0")), True),
        (CardNeed(3), False),
    ],
)
def test_cards_are_counted(need: CardNeed, matches: bool) -> None:
    assert bool(placed([node()], wants(Need(cards=need)))) is matches


def test_virtual_cards_go_to_those_who_name_them() -> None:
    view = node(cards=(card(0, vendor="virtual", model=None),))
    assert placed([view], wants(Need(cards=CardNeed(1, vendor="virtual")))) == {"u1": "gpu-a"}


def test_a_card_is_taken_once_and_a_releasing_one_is_not_free() -> None:
    held = Held("gpu-a", "GPU-0", 0, "GPU-0", "whole")
    assert placed([node()], wants(ONE, "u1"), wants(ONE, "u2"), held=(held,)) == {"u1": "gpu-a"}


def test_a_cut_card_is_not_given_whole_and_its_slices_are_given_once() -> None:
    view = node(cards=(card(0), SLICE, dataclasses.replace(SLICE, uuid="MIG-2", gi_id=8)))
    need = Need(cards=CardNeed(1, slice="1g.10gb"))
    assert placed([view], wants(ONE)) == {}
    made = decide([wants(need, f"u{number}") for number in range(3)], sites_of([view], (), (), MPS_MAX))
    assert [pick.card.uuid for one in made for pick in one.picks] == ["MIG-1", "MIG-2"]
    assert len({(pick.parent_uuid, pick.slot) for one in made for pick in one.picks}) == 2


def test_mps_shares_a_card_up_to_the_limit_and_with_nobody_else() -> None:
    view = node(cards=(card(0),), capabilities={"GPU-0": GpuCapability("GPU-0", mps_capable=True)})
    need = Need(cards=CardNeed(1, mps=True))
    made = decide([wants(need, f"u{number}") for number in range(6)], sites_of([view], (), (), MPS_MAX))
    assert [one.picks[0].slot for one in made] == [1, 2, 3, 4]
    whole = Held("gpu-a", "GPU-0", 0, "GPU-0", "whole")
    shared = Held("gpu-a", "GPU-0", 1, "GPU-0", "mps")
    assert placed([view], wants(need), held=(whole,)) == {}
    assert placed([view], wants(ONE), held=(shared,)) == {}


@pytest.mark.parametrize(
    ("domains", "fits"),
    [((frozenset({"GPU-0", "GPU-1"}),), True), ((frozenset({"GPU-0"}), frozenset({"GPU-1"})), False), ((), False)],
)
def test_one_nvlink_domain_means_a_known_one(domains: tuple[frozenset[str], ...], fits: bool) -> None:
    need = Need(cards=CardNeed(2, same_nvlink_domain=True))
    assert bool(placed([node(nvlink_domains=domains)], wants(need))) is fits


def test_highest_priority_first_then_oldest() -> None:
    view = node(cards=(card(0),))
    old, new = "2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z"
    urgent = wants(ONE, "urgent", priority=90, created_at=new)
    assert placed([view], wants(ONE, "old", created_at=old), urgent) == {"urgent": "gpu-a"}
    assert placed([view], wants(ONE, "new", created_at=new), wants(ONE, "old", created_at=old)) == {"old": "gpu-a"}


def test_a_big_task_that_waits_does_not_keep_small_ones_waiting() -> None:
    big = wants(Need(cards=CardNeed(8)), "big", priority=90)
    assert placed([node()], big, wants(ONE, "small")) == {"small": "gpu-a"}


def test_an_excluded_node_is_left_out_for_that_task_alone() -> None:
    views = [node("gpu-a", cards=(card(0),)), node("gpu-b", cards=(card(1),))]
    left_out = wants(ONE, "u1", excluded=frozenset({"gpu-a"}))
    assert placed(views, left_out, wants(ONE, "u2")) == {"u1": "gpu-b", "u2": "gpu-a"}
    assert placed(views[:1], left_out) == {}


def test_what_a_stored_spec_needs() -> None:
    spec = {
        "driver": "docker",
        "node_id": None,
        "node_selector": {"b": "2", "a": "1"},
        "network": "host",
        "ports": [{"container": 9, "host": None}, {"container": 8, "host": 8}],
        "gpus": {"count": 2, "class": "c", "uuids": ["x", "y"], "mps": False},
        "cpus": 1.5,
        "memory_mib": None,
    }
    assert need_of(spec) == Need(
        node_selector=(("a", "1"), ("b", "2")),
        cards=CardNeed(2, gpu_class="c", uuids=("x", "y")),
        cpus=1.5,
        host_ports=(8, 9),
    )
    assert need_of({**spec, "network": "bridge"}).host_ports == (8,)


def test_ten_thousand_tasks_on_a_thousand_nodes_are_decided_in_two_seconds() -> None:
    """CPU seconds of this process, with needs of many kinds."""
    views = [
        node(f"gpu-{number:04}", tuple(card(8 * number + index) for index in range(8)), memory_total_mib=1 << 20)
        for number in range(1000)
    ]
    shapes = [
        Need(cards=CardNeed(1)),
        Need(cards=CardNeed(1, model="*H100*"), cpus=1),
        Need(cards=CardNeed(2, min_memory_mib=80000), memory_mib=1024),
        Need(cards=CardNeed(8)),
        Need(cards=CardNeed(1, vendor="hygon")),
        Need(cpus=0.5),
    ]
    candidates = [
        wants(shapes[number % len(shapes)], f"u{number:05}", priority=number % 3 * 10) for number in range(10_000)
    ]
    sites = sites_of(views, (), (), MPS_MAX)
    began = time.process_time()
    made = decide(candidates, sites)
    spent = time.process_time() - began
    cards = Counter(pick.card.uuid for one in made for pick in one.picks)
    assert max(cards.values()) == 1
    assert len(cards) == 8000
    assert spent < 2, f"{spent:.2f} s"
