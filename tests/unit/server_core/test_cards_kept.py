"""What is stored of cards that are not well, and what a restart or another process makes of it."""

from __future__ import annotations

import json

import pytest

from runtime.protocol.hardware import Gpu, GpuCollectFailure, GpuDetection
from runtime.protocol.nodes import CardHealth
from runtime.server.services.cards import Cards, Limits, Observation, Track, advance, health
from runtime.server.services.cards_kept import GONE_S, conditions, kept, merged, restored

A, B = Gpu("GPU-a", "nvidia", 0), Gpu("GPU-b", "nvidia", 1)
B1 = Gpu("MIG-b1", "nvidia", parent_uuid="GPU-b")
WELL = Observation([A, B, B1], at=1.0)
FAILS = Observation([A, B, B1], failures=[GpuCollectFailure("GPU-b", reason="lost")], at=2.0)
SLICE = Observation([A, B, B1], failures=[GpuCollectFailure("MIG-b1", reason="lost")], at=2.0)
GONE = Observation([A], at=2.0)
KEYLESS = [GpuDetection("nvidia", True, loss_detection="none")]
SHRUNK = [Observation([A, B], detection=KEYLESS), Observation([A], detection=KEYLESS, at=2.0)]


def after(*beats: Observation) -> Cards:
    cards = Cards()
    for seen in beats:
        cards, _ = advance(cards, seen, Limits(3, 3))
    return cards


@pytest.mark.parametrize(
    ("beats", "expected"),
    [
        ([WELL], {"GPU-a": "ok", "GPU-b": "ok", "MIG-b1": "ok"}),
        ([WELL, FAILS], {"GPU-a": "ok", "GPU-b": "suspect", "MIG-b1": "suspect"}),
        ([WELL, *[FAILS] * 3], {"GPU-a": "ok", "GPU-b": "lost", "MIG-b1": "lost"}),
        ([WELL, *[SLICE] * 3], {"GPU-a": "ok", "GPU-b": "ok", "MIG-b1": "lost"}),
        ([WELL, *[GONE] * 3], {"GPU-a": "ok", "GPU-b": "lost", "MIG-b1": "lost"}),
        (SHRUNK, {"GPU-a": "suspect", "GPU-b": "suspect", "MIG-b1": "suspect"}),
    ],
)
def test_a_restart_changes_nothing(beats: list[Observation], expected: dict[str, str]) -> None:
    cards = after(*beats)
    stored = json.loads(json.dumps(kept(cards)))
    # A restart begins with the stored list alone, as if all of it were well.
    list_alone = after(Observation(beats[-1].gpus))
    again = restored(list_alone, stored, 3.0)
    found = {uuid: state.value for uuid, state in health(again, [A, B, B1], ()).items()}
    assert found == expected
    assert conditions(again) == conditions(cards)
    assert (stored is None) is (set(expected.values()) == {"ok"})


BROKEN = Observation([A, B, B1], collector_error="nvidia-smi did not answer", at=2.0)


def test_a_card_tool_that_fails_is_known_to_a_restart_and_to_other_processes() -> None:
    fails, well = after(WELL, *[BROKEN] * 3), after(WELL)
    assert conditions(fails) != conditions(well) == conditions(after(WELL, BROKEN, BROKEN))
    again = restored(after(WELL), json.loads(json.dumps(kept(fails))), 3.0)
    for found in (again, merged(well, again)):
        assert (found.collector_failing, found.collector_since) == (True, 2.0)
        assert found.collector_why == "nvidia-smi did not answer"
    assert not merged(again, well).collector_failing
    counting = after(WELL, BROKEN, BROKEN)
    assert merged(counting, well).collector_errors == 2, "counts go on where both agree"


def test_a_card_that_was_taken_out_is_forgotten_one_that_fails_is_not() -> None:
    gone, fails = after(WELL, *[GONE] * 3), after(WELL, *[FAILS] * 3)
    assert "GPU-b" in restored(after(GONE), kept(gone), 2.0 + GONE_S - 1).tracks
    assert "GPU-b" not in restored(after(GONE), kept(gone), 2.0 + GONE_S + 1).tracks
    assert restored(after(WELL), kept(fails), 2.0 + 9 * GONE_S).tracks["GPU-b"].state is CardHealth.LOST


@pytest.mark.parametrize("rubbish", [None, [], {"tracks": 3}, {"tracks": [{"gpu": {}}]}])
def test_what_cannot_be_read_changes_nothing(rubbish: object) -> None:
    cards = after(WELL)
    assert restored(cards, rubbish, 3.0) is cards


OK, SUSPECT, LOST = (Track(B, state=state) for state in (CardHealth.OK, CardHealth.SUSPECT, CardHealth.LOST))
COUNTS = Track(B, failed=2, state=CardHealth.SUSPECT)


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (OK, LOST, LOST),
        (SUSPECT, LOST, LOST),
        (LOST, OK, OK),
        pytest.param(COUNTS, SUSPECT, COUNTS, id="counts go on where both agree"),
        (None, LOST, LOST),
        (LOST, None, LOST),
    ],
)
def test_another_process_has_concluded_something(own: Track | None, other: Track | None, expected: Track) -> None:
    def cards(track: Track | None) -> Cards:
        return Cards({} if track is None else {"GPU-b": track})

    assert merged(cards(own), cards(other)).tracks == {"GPU-b": expected}


def test_a_slice_that_is_well_again_elsewhere_is_well_here() -> None:
    own, other = after(WELL, *[SLICE] * 3), after(WELL)
    assert "MIG-b1" in own.tracks
    assert "MIG-b1" not in merged(own, other).tracks


def test_counts_alone_are_not_worth_a_write() -> None:
    assert conditions(after(WELL, FAILS)) == conditions(after(WELL, FAILS, FAILS))
    assert conditions(after(WELL, FAILS, FAILS)) != conditions(after(WELL, FAILS, FAILS, FAILS))
    assert conditions(after(WELL)) == frozenset()
