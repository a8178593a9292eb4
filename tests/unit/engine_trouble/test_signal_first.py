"""Whether our signal came before the end, when nobody lived to see the answer to it and the clock was set meanwhile."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.agent.drivers.driver import Facts
from runtime.agent.tasks.classify import Circumstances, Sent, Stop, StopReason, classify
from runtime.protocol.reasons import Reason
from runtime.protocol.times import from_epoch, to_wire

WALL = 1_800_000_000.0  # of the monotonic clock's zero, before the clock was set
AT = 500.0  # the signal, by the monotonic clock
ENDED = Facts("c", "task-a", "exited", False, 3, "", False, to_wire(from_epoch(WALL)), None, {})
STOP = Stop(StopReason.OPERATOR, WALL + AT, Sent.INTENDED, mono=AT, mark="boot")


def reason(facts: Facts, seen: Circumstances) -> Reason:
    return classify(facts, seen).reason


@pytest.mark.parametrize(("signalled", "expected"), [(True, Reason.STOPPED_BY_OPERATOR), (False, Reason.EXITED)])
@pytest.mark.parametrize("ended", [AT - 400, AT + 400])
def test_the_engines_news_tell_before_any_clock(signalled: bool, expected: Reason, ended: float) -> None:
    facts = dataclasses.replace(ENDED, finished_at=to_wire(from_epoch(WALL + ended)))
    assert reason(facts, Circumstances(stop=STOP, signalled=signalled)) is expected


@pytest.mark.case("FC-015")
@pytest.mark.parametrize("step", [0.0, 3600.0, -3600.0, 365 * 86400.0, -365 * 86400.0])
@pytest.mark.parametrize("dated_after_the_step", [False, True])
def test_an_end_after_the_signal_stays_after_it(step: float, dated_after_the_step: bool) -> None:
    """A node whose clock was off by minutes. Here it is set between the signal and the look at the container."""
    offset = WALL + (step if dated_after_the_step else 0.0)
    date = to_wire(from_epoch(offset + AT + 5))
    now = float(from_epoch(offset + AT + 5).timestamp()) - (WALL + step)  # as it reads by the clock of now
    seen = Circumstances(stop=STOP, moments=(now,), mark="boot")
    assert reason(dataclasses.replace(ENDED, finished_at=date), seen) is Reason.STOPPED_BY_OPERATOR


def test_an_end_before_the_signal_is_the_programs_own() -> None:
    facts = dataclasses.replace(ENDED, finished_at=to_wire(from_epoch(WALL + AT - 5)))
    assert reason(facts, Circumstances(stop=STOP, moments=(AT - 5,), mark="boot")) is Reason.EXITED


def test_another_run_of_the_machine_has_only_the_wall_clock() -> None:
    stop = dataclasses.replace(STOP, mark="before")
    early = dataclasses.replace(ENDED, finished_at=to_wire(from_epoch(WALL + AT - 5)))
    late = dataclasses.replace(ENDED, finished_at=to_wire(from_epoch(WALL + AT + 5)))
    assert reason(early, Circumstances(stop=stop, moments=(AT + 50,), mark="boot")) is Reason.EXITED
    assert reason(late, Circumstances(stop=stop, moments=(), mark="boot")) is Reason.STOPPED_BY_OPERATOR
