"""Proofs of an engine's life and its silences, while the wall clock is set at will."""

from __future__ import annotations

import pytest

from runtime.agent.tasks.outages import Outages, WallClock
from runtime.protocol.times import from_epoch, to_wire

WALL = 1_800_000_000.0


class Clocks:
    """The wall clock shows ``WALL`` plus the monotonic one, plus what it was ``set`` by."""

    def __init__(self) -> None:
        self.mono = 1000.0
        self.set = 0.0

    def clock(self) -> float:
        return self.mono

    def wall(self) -> float:
        return WALL + self.mono + self.set

    def outages(self) -> Outages:
        return Outages(self.wall, self.clock)

    def date(self) -> str:
        """What the engine writes for this moment."""
        return to_wire(from_epoch(self.wall()))


def test_a_silence_begins_with_the_last_proof_of_life() -> None:
    clocks = Clocks()
    outages = clocks.outages()
    outages.alive()
    clocks.mono += 5
    outages.alive()
    clocks.mono += 3
    outages.gone()
    clocks.mono += 30
    assert [outages.silent(moment) for moment in (1004, 1006, 1037)] == [False, True, True]
    outages.alive()
    clocks.mono += 5
    outages.alive()
    assert [outages.silent(moment) for moment in (1004, 1006, 1037, 1040)] == [False, True, True, False]
    assert outages.watched(1001) and not outages.watched(999)
    assert outages.last_proof_before(1037) == 1005
    assert outages.last_proof_before(1000) is None


def test_an_answer_proves_life_when_it_was_asked_for() -> None:
    """Docker was told to stop while it made a long list, which it still sent."""
    clocks = Clocks()
    outages = clocks.outages()
    asked = clocks.mono
    clocks.mono += 8
    outages.alive(asked)
    clocks.mono += 1
    outages.gone()
    assert outages.silent(1004)
    assert not outages.silent(999)


def test_an_engine_that_was_never_seen_at_work() -> None:
    outages = Clocks().outages()
    outages.gone()
    assert outages.silent(1.0)
    assert not outages.watched(2000)


STEPS = [3600.0, -3600.0, 365 * 86400.0, -365 * 86400.0, -30.0]


@pytest.mark.case("FC-015")
@pytest.mark.parametrize("step", STEPS)
def test_an_end_dated_before_the_clock_was_set(step: float) -> None:
    """A clock that was off by minutes made members look away that answered. The engine dates an end; then the clock is
    set, and the date is read: it still means the moment that it was written at."""
    clocks = Clocks()
    outages = clocks.outages()
    outages.alive()
    clocks.mono += 60
    date, at = clocks.date(), clocks.mono
    clocks.mono += 1
    outages.alive()
    clocks.set += step
    clocks.mono += 1
    outages.alive()
    assert any(abs(moment - at) < 0.01 for moment in outages.moments(date))
    assert all(moment <= clocks.mono or abs(moment - at) < 0.01 for moment in outages.moments(date) if step > 0)


@pytest.mark.case("FC-015")
@pytest.mark.parametrize("step", STEPS)
def test_an_end_dated_after_the_clock_was_set(step: float) -> None:
    clocks = Clocks()
    outages = clocks.outages()
    outages.alive()
    clocks.mono += 5
    clocks.set += step
    outages.alive()
    clocks.mono += 60
    date, at = clocks.date(), clocks.mono
    clocks.mono += 1
    assert any(abs(moment - at) < 0.01 for moment in outages.moments(date))


@pytest.mark.parametrize("step", STEPS)
def test_a_silence_stays_as_long_as_it_was_when_the_clock_is_set_in_it(step: float) -> None:
    clocks = Clocks()
    outages = clocks.outages()
    outages.alive()
    clocks.mono += 5
    outages.gone()
    clocks.set += step
    clocks.mono += 10
    outages.alive()
    clocks.mono += 5
    outages.alive()
    assert [outages.silent(moment) for moment in (999, 1001, 1014, 1016)] == [False, True, True, False]


def test_a_clock_that_drifts_is_not_set() -> None:
    clock = WallClock()
    for second in range(100):
        clock.note(float(second), second * 1.001)
    assert len(clock.moments(50.0)) == 1


def test_an_end_without_a_date_is_at_no_moment() -> None:
    assert Clocks().outages().moments(None) == ()
