"""The health of cards, beat by beat."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runtime.protocol.hardware import Gpu, GpuCollectFailure, GpuDetection
from runtime.protocol.nodes import CardHealth, EventKind
from runtime.server.services.cards import (
    COLLECTOR_ERROR,
    COLLECTOR_GOOD,
    Cards,
    Limits,
    Observation,
    advance,
    health,
    with_unlisted,
)

A, B = Gpu("GPU-a", "nvidia", 0), Gpu("GPU-b", "nvidia", 1)
SLICE = Gpu("MIG-b1", "nvidia", parent_uuid="GPU-b")
BOTH = Observation([A, B])
ONLY_A = Observation([A])
BROKEN = Observation([A, B], collector_error="nvidia-smi did not answer in 10 s")
UNKNOWN = Observation(None)
FAILS = Observation([A, B], failures=[GpuCollectFailure("GPU-b", reason="Unknown Error")])
FAILS_BY_INDEX = Observation([A, B], failures=[GpuCollectFailure(index=1, reason="ERR!")])
KEYLESS = [GpuDetection("nvidia", True, loss_detection="none")]


def after(*beats: Observation) -> tuple[Cards, list[tuple[EventKind, str | None]]]:
    cards, told = Cards(), []
    for seen in beats:
        cards, changes = advance(cards, seen, Limits(3, 3))
        told.extend((change.kind, change.uuid) for change in changes)
    return cards, told


SUSPECT, GONE, BACK = EventKind.GPU_SUSPECT, EventKind.GPU_LOST, EventKind.GPU_RETURNED
LOST_CARD = [FAILS] * 3


@pytest.mark.parametrize(
    ("beats", "expected", "events"),
    [
        pytest.param([BOTH], CardHealth.OK, [], id="listed"),
        pytest.param([BOTH, FAILS, FAILS], CardHealth.SUSPECT, [SUSPECT], id="named twice"),
        pytest.param([BOTH, FAILS, FAILS, FAILS], CardHealth.LOST, [SUSPECT, GONE], id="named three times"),
        pytest.param([BOTH, *[FAILS_BY_INDEX] * 3], CardHealth.LOST, [SUSPECT, GONE], id="named by index"),
        pytest.param([BOTH, FAILS, FAILS, BOTH, FAILS], CardHealth.SUSPECT, [SUSPECT, SUSPECT], id="not in a row"),
        pytest.param([BOTH, ONLY_A, ONLY_A], CardHealth.SUSPECT, [SUSPECT], id="absent twice"),
        pytest.param([BOTH, ONLY_A, ONLY_A, ONLY_A], CardHealth.LOST, [SUSPECT, GONE], id="absent three times"),
        pytest.param([BOTH, *[BROKEN] * 2], CardHealth.OK, [], id="the collector as a whole condemns nobody"),
        pytest.param([BOTH, *[UNKNOWN] * 10], CardHealth.OK, [], id="an unknown list condemns nobody"),
        pytest.param([BOTH, ONLY_A, BROKEN, ONLY_A, BROKEN], CardHealth.SUSPECT, [SUSPECT], id="failures between"),
        pytest.param([BOTH, *LOST_CARD, BOTH, BOTH], CardHealth.LOST, [SUSPECT, GONE], id="good twice"),
        pytest.param([BOTH, *LOST_CARD, *[BOTH] * 3], CardHealth.OK, [SUSPECT, GONE, BACK], id="good three times"),
        pytest.param([BOTH, *LOST_CARD, BOTH, BOTH, FAILS, BOTH], CardHealth.LOST, [SUSPECT, GONE], id="flapping"),
    ],
)
def test_card(beats: list[Observation], expected: CardHealth, events: list[EventKind]) -> None:
    cards, told = after(*beats)
    found = health(cards, [A, B], ())
    assert (found["GPU-a"], found["GPU-b"]) == (CardHealth.OK, expected)
    assert told == [(kind, "GPU-b") for kind in events]


def test_slices_share_their_cards_fate() -> None:
    listed = Observation([A, B, SLICE], failures=[GpuCollectFailure("GPU-b", reason="fallen off the bus")])
    cards, _ = after(listed, listed, listed)
    assert health(cards, [A, B, SLICE], ())["MIG-b1"] is CardHealth.LOST


def test_a_slice_that_is_gone_condemns_nothing() -> None:
    cards, told = after(Observation([A, B, SLICE]), BOTH, BOTH, BOTH)
    assert told == []
    assert with_unlisted(cards, [A, B]) == (A, B)


def test_a_slice_that_fails_alone_leaves_its_card_and_its_siblings_well() -> None:
    other = Gpu("MIG-b2", "nvidia", parent_uuid="GPU-b")
    all_of_them = [A, B, SLICE, other]
    fails = Observation(all_of_them, failures=[GpuCollectFailure("MIG-b1", reason="Unknown Error")])
    well = Observation(all_of_them)
    steps = [
        ([well, fails], CardHealth.SUSPECT, [SUSPECT]),
        ([well, fails, fails, fails], CardHealth.LOST, [SUSPECT, GONE]),
        ([well, fails, fails, fails, well, well], CardHealth.LOST, [SUSPECT, GONE]),
        ([well, fails, fails, fails, well, well, well], CardHealth.OK, [SUSPECT, GONE, BACK]),
        ([fails, fails, fails, BOTH, well], CardHealth.OK, [SUSPECT, GONE]),
    ]
    for beats, expected, events in steps:
        cards, told = after(*beats)
        found = health(cards, all_of_them, ())
        assert found.pop("MIG-b1") is expected
        assert set(found.values()) == {CardHealth.OK}
        assert told == [(kind, "MIG-b1") for kind in events]
        assert with_unlisted(cards, all_of_them) == tuple(all_of_them)


def test_an_index_that_two_cards_claim_condemns_neither() -> None:
    # A lost card keeps the index that it had; the card behind it has moved up to it.
    moved = Observation([A, Gpu("GPU-b", "nvidia", 0)], failures=[GpuCollectFailure(index=0, reason="ERR!")])
    cards, told = after(BOTH, *[moved] * 3)
    assert told == []
    assert set(health(cards, [A, B], ()).values()) == {CardHealth.OK}


def test_a_card_whose_index_shifts_is_followed_by_its_uuid() -> None:
    first_gone = Observation([Gpu("GPU-b", "nvidia", 0)])
    cards, told = after(BOTH, *[first_gone] * 3)
    assert told == [(SUSPECT, "GPU-a"), (GONE, "GPU-a")]
    assert health(cards, [A, B], ()) == {"GPU-a": CardHealth.LOST, "GPU-b": CardHealth.OK}


def test_a_card_that_is_gone_is_still_shown() -> None:
    cards, _ = after(BOTH, ONLY_A)
    assert with_unlisted(cards, [A]) == (A, B)


def _card(number: int, index: int | None) -> Gpu:
    return Gpu(f"GPU-{number}", "nvidia", index)


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ([1], [_card(0, 0), _card(2, 2)]),
        ([1], [_card(0, 0), _card(2, 1)]),  # the indexes behind it moved on
        ([0, 1], [_card(2, 0)]),
        ([0, 1], [_card(2, 2)]),
        ([2], [_card(0, 0), _card(1, 1)]),
        ([0, 1, 2], []),
    ],
)
def test_a_lost_card_keeps_its_place(lost: list[int], left: list[Gpu]) -> None:
    other = Gpu("MU-0", "musa", 0)
    cards, _ = after(Observation([*(_card(n, n) for n in range(3)), other]), *[Observation([*left, other])] * 3)
    shown = [gpu.uuid for gpu in with_unlisted(cards, [*left, other]) if gpu.vendor == "nvidia"]
    assert shown == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_lost_card_comes_behind_the_slices_of_the_one_before_it() -> None:
    slices = [A, dataclasses.replace(SLICE, parent_uuid="GPU-a")]
    cards, _ = after(Observation([*slices, B]), *[Observation(slices)] * 3)
    assert with_unlisted(cards, slices) == (*slices, B)


def test_a_failing_collector_condemns_nobody_and_is_told_once_from_its_third_beat_on() -> None:
    def step(cards: Cards, seen: Observation) -> tuple[Cards, list[tuple[EventKind, str | None, str | None]]]:
        after_it, changes = advance(cards, seen, Limits(3, 3))
        return after_it, [(one.kind, one.uuid, one.code) for one in changes]

    cards, _ = step(Cards(), dataclasses.replace(BOTH, at=1.0))
    told = []
    for at in range(2, 8):
        cards, changes = step(cards, dataclasses.replace(BROKEN, at=float(at)))
        told.append(changes)
        assert cards.collector_failing is (at >= 4)
    assert told == [[], [], [(EventKind.NODE_STATE, None, COLLECTOR_ERROR)], [], [], []]
    assert (cards.collector_since, cards.collector_why) == (2.0, BROKEN.collector_error)
    assert set(health(cards, [A, B], ()).values()) == {CardHealth.OK}
    for good in (BOTH, UNKNOWN):
        well, changes = step(cards, good)
        assert changes == [(EventKind.NODE_STATE, None, COLLECTOR_GOOD)]
        assert (well.collector_failing, well.collector_since, well.collector_why) == (False, None, "")
        assert step(well, good)[1] == []


def test_without_stable_keys_all_are_doubted_and_none_condemned() -> None:
    shorter = Observation([A], detection=KEYLESS)
    cards, told = after(Observation([A, B], detection=KEYLESS), *[shorter] * 5)
    assert told == [(EventKind.CARDS_MISSING, None)]
    assert set(health(cards, [A, B], ()).values()) == {CardHealth.SUSPECT}
    cards, _ = advance(cards, Observation([A, B], detection=KEYLESS), Limits())
    assert set(health(cards, [A, B], ()).values()) == {CardHealth.OK}


@pytest.mark.parametrize(
    ("beats", "count"),
    [
        ([BROKEN] * 2, 2),
        ([BROKEN, BROKEN, BOTH], 0),
        ([BROKEN, BOTH, BROKEN], 1),
    ],
)
def test_collector_errors_count_in_a_row(beats: list[Observation], count: int) -> None:
    assert after(*beats)[0].collector_errors == count


def test_it_is_known_since_when_a_card_is_not_well_and_what_was_said_of_it_last() -> None:
    said = [dataclasses.replace(FAILS, at=100.0 + n) for n in range(4)]
    worse = Observation([A, B], failures=[GpuCollectFailure("GPU-b", reason="fell off the bus")], at=110.0)
    cards, _ = after(BOTH, *said, worse, dataclasses.replace(BOTH, at=120.0))
    assert (cards.tracks["GPU-b"].since, cards.tracks["GPU-b"].why) == (100.0, "fell off the bus")
    assert (cards.tracks["GPU-a"].since, cards.tracks["GPU-a"].why) == (None, "")
    cards, _ = after(BOTH, *said, BOTH, BOTH, BOTH)
    assert (cards.tracks["GPU-b"].since, cards.tracks["GPU-b"].why) == (None, "")


def test_a_card_held_by_others_is_dirty_unless_it_is_worse() -> None:
    cards, _ = after(BOTH, FAILS)
    found: dict[str, Any] = health(cards, [A, B], {"GPU-a", "GPU-b"})
    assert found == {"GPU-a": CardHealth.DIRTY, "GPU-b": CardHealth.SUSPECT}
