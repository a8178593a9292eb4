"""Which of the nodes that would do a task gets, and which of its cards: one rule of the score a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from runtime.protocol.hardware import Gpu, GpuCapability
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement.decide import decide
from runtime.server.services.placement.model import CardNeed, Held, Need, Occupant, Site, need_of, sites_of
from runtime.server.services.placement.score import Score, score
from tests.unit.server_tasks.test_placement import MPS_MAX, card, node, placed, wants

SMALL, BIG = 23034, 81559


def cards(node_id: str, *sizes: int | None) -> tuple[Gpu, ...]:
    return tuple(card(uuid=f"{node_id}-{number}", memory_total_mib=size) for number, size in enumerate(sizes))


def site(node_id: str, *sizes: int | None, domains: tuple[str, ...] = (), **facts: object) -> NodeView:
    """``domains``: the numbers of the cards that are linked, as "01"."""
    linked = tuple(frozenset(f"{node_id}-{number}" for number in domain) for domain in domains)
    return node(node_id, cards(node_id, *sizes), nvlink_domains=linked, **facts)


def held(node_id: str, *numbers: int) -> tuple[Held, ...]:
    return tuple(Held(node_id, f"{node_id}-{one}", 0, f"{node_id}-{one}", "whole") for one in numbers)


def given(views: list[NodeView], need: Need, taken: tuple[Held, ...] = (), tasks: tuple[Occupant, ...] = ()) -> str:
    """The cards that one task gets, or its node where it wants none."""
    (made,) = decide([wants(need)], sites_of(views, tasks, taken, MPS_MAX))
    return " ".join(pick.card.uuid for pick in made.picks) or made.node_id


ONE, TWO = Need(cards=CardNeed(1)), Need(cards=CardNeed(2))
BUSY_A = (Occupant("a", Need()), Occupant("a", Need()))


@pytest.mark.parametrize(
    ("views", "need", "taken", "wanted"),
    [
        # Within a node the smallest card that does, known before unknown.
        ([site("a", BIG, SMALL)], ONE, (), "a-1"),
        ([site("a", BIG, SMALL)], Need(cards=CardNeed(1, min_memory_mib=40000)), (), "a-0"),
        ([site("a", None, BIG)], ONE, (), "a-1"),
        ([site("a", BIG, SMALL, SMALL)], TWO, (), "a-1 a-2"),
        # Over nodes, too, before how many are left.
        ([site("a", BIG), site("b", SMALL, SMALL)], ONE, (), "b-0"),
        # Then the node that has fewest of them left, so that whole nodes stay whole.
        ([site("a", BIG, BIG, BIG), site("b", BIG, BIG)], ONE, (), "b-0"),
        ([site("a", BIG, BIG), site("b", BIG, BIG)], ONE, held("b", 0), "b-1"),
        ([site("a", *[BIG] * 8), site("b", *[BIG] * 8)], Need(cards=CardNeed(4)), held("b", 0, 1), "b-2 b-3 b-4 b-5"),
        # Cards in one domain before cards that are not known to be linked.
        ([site("a", BIG, BIG, BIG, domains=("12",))], TWO, (), "a-1 a-2"),
        ([site("a", BIG, BIG), site("b", BIG, BIG, domains=("01",))], TWO, (), "b-0 b-1"),
        # Of several domains the one that it leaves fewest of; size first.
        ([site("a", *[BIG] * 6, domains=("0123", "45"))], TWO, (), "a-4 a-5"),
        ([site("a", BIG, BIG, SMALL, SMALL, domains=("01",))], TWO, (), "a-2 a-3"),
        (
            [site("a", BIG, BIG, SMALL, SMALL, domains=("01",))],
            Need(cards=CardNeed(2, same_nvlink_domain=True)),
            (),
            "a-0 a-1",
        ),
    ],
)
def test_the_tightest_fit(views: list[NodeView], need: Need, taken: tuple[Held, ...], wanted: str) -> None:
    assert given(views, need, taken) == wanted
    assert given(views[::-1], need, taken) == wanted, "in whatever order nodes are known"


@pytest.mark.parametrize(
    ("views", "need", "wanted"),
    [
        ([site("a", BIG), site("b", BIG)], ONE, "b-0"),  # a is busy
        ([site("a", BIG, images=frozenset({"app:1"})), site("b", BIG)], replace(ONE, image="app:1"), "a-0"),
        ([site("a", BIG, images=frozenset({"app:2"})), site("b", BIG)], replace(ONE, image="app:1"), "b-0"),
        (
            [site("a", BIG, images=None), site("b", BIG, images=frozenset({"app:1"}))],
            replace(ONE, image="app:1"),
            "b-0",
        ),
        ([site("a", BIG, models=frozenset({"/m"})), site("b", BIG)], replace(ONE, model="/m"), "a-0"),
        # The image before the model, and the fit before both.
        (
            [site("a", BIG, engines=frozenset({"vllm"})), site("b", BIG, models=frozenset({"/m"}))],
            replace(ONE, model="/m"),
            "a-0",
        ),
        ([site("a", BIG, BIG, images=frozenset({"app:1"})), site("b", BIG)], replace(ONE, image="app:1"), "b-0"),
        # The image before linked cards, those before the load.
        (
            [site("a", BIG, BIG, images=frozenset({"app:1"})), site("b", BIG, BIG, domains=("01",))],
            replace(TWO, image="app:1"),
            "a-0 a-1",
        ),
        ([site("a", BIG, BIG, domains=("01",)), site("b", BIG, BIG)], TWO, "a-0 a-1"),
    ],
)
def test_what_is_there_counts_before_how_busy_a_node_is(views: list[NodeView], need: Need, wanted: str) -> None:
    assert given(views, need, tasks=BUSY_A) == wanted


@pytest.mark.parametrize(
    ("views", "taken", "wanted"),
    [
        ([site("b", BIG), site("c")], (), "c"),
        ([site("b", BIG), site("c", BIG)], held("c", 0), "c"),
        ([site("b", BIG), node("c", (card(uuid="v", vendor="virtual"),))], (), "c"),
        ([site("b", BIG), site("c", BIG)], (), "b"),
    ],
)
def test_a_task_without_cards_leaves_nodes_with_free_cards_to_others(
    views: list[NodeView], taken: tuple[Held, ...], wanted: str
) -> None:
    assert given(views, Need(), taken, (Occupant("c", Need()),)) == wanted


def test_tasks_without_cards_spread_by_what_the_decision_itself_has_placed() -> None:
    made = placed([site(name) for name in "abc"], *(wants(Need(), f"u{number}") for number in range(9)))
    assert Counter(made.values()) == {"a": 3, "b": 3, "c": 3}


def test_slices_fill_the_card_that_is_cut_already_used() -> None:
    def cut(parent: str, *gi: int) -> tuple[Gpu, ...]:
        one = card(uuid=parent)
        return (
            one,
            *(
                card(uuid=f"{parent}-{number}", parent_uuid=parent, profile="1g", gi_id=number, ci_id=0)
                for number in gi
            ),
        )

    need = Need(cards=CardNeed(1, slice="1g"))
    two = node("a", (*cut("x", 1, 2), *cut("y", 1, 2)))
    taken = (Held("a", "y", 65, "y-1", "mig"),)
    assert given([two], need, taken) == "y-2"
    assert given([node("a", (*cut("x", 1), *cut("y", 1))), node("b", cut("z", 1))], need) == "z-1"


def test_mps_fills_the_card_that_is_shared_already() -> None:
    capable = {uuid: GpuCapability(uuid, mps_capable=True) for uuid in ("a-0", "a-1", "b-0")}
    need = Need(cards=CardNeed(1, mps=True))
    a, b = site("a", BIG, BIG, capabilities=capable), site("b", BIG, capabilities=capable)
    shared = (Held("a", "a-1", 1, "a-1", "mps"),)
    assert given([a], need, shared) == "a-1"
    assert given([a, b], need, shared) == "b-0"


@pytest.mark.parametrize(
    ("image", "wished"),
    [
        ("app", "app:latest"),
        ("host:5000/app", "host:5000/app:latest"),
        ("host:5000/app:1", "host:5000/app:1"),
        ("app@sha256:00", "app@sha256:00"),
        (None, None),
    ],
)
def test_an_image_is_wished_for_by_the_name_that_engines_list(image: str | None, wished: str | None) -> None:
    assert need_of({"driver": "docker", "image": image}).image == wished


def test_tasks_that_all_want_something_else_share_what_they_have_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room and image make no new look at the nodes: each is scored when it changes, once for a kind of cards."""
    nodes, tasks = 100, 2000
    views = [site(f"n{one:03}", *[BIG] * 8, images=frozenset({f"app:{one % 10}"})) for one in range(nodes)]
    kinds = (ONE, TWO, Need(cpus=0.5))
    candidates = [
        wants(replace(kinds[one % 3], image=f"app:{one % 100}", memory_mib=one % 7), f"u{one:05}")
        for one in range(tasks)
    ]
    asked: list[str] = []

    def counted(need: Need, here: Site, fitting: Sequence[Gpu]) -> Score | None:
        asked.append(here.view.node_id)
        return score(need, here, fitting)

    monkeypatch.setattr("runtime.server.services.placement.decide.score", counted)
    made = decide(candidates, sites_of(views, (), (), MPS_MAX))
    assert sum(len(one.picks) for one in made) == 8 * nodes
    assert len(asked) <= 3 * (nodes + len(made)), "each kind once at the beginning, and once for each change"
