"""What an engine's parts are asked about an end, and what becomes of the answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.drivers.driver import EngineFacts, Facts, RunTimes
from runtime.agent.drivers.errors import EngineUnavailable
from runtime.agent.tasks.engine_ends import ended_with_engine
from runtime.agent.tasks.engines import Engine
from runtime.agent.tasks.outages import Outages
from runtime.protocol.states import Driver as DriverName
from runtime.protocol.times import from_epoch, to_wire

WALL = 1_800_000_000.0


class Scripted:
    """A driver that was started at ``began`` and says ``times``; ``asked`` counts."""

    def __init__(self) -> None:
        self.began: float | None = 50.0
        self.times: RunTimes | None = None
        self.own = self.live_restore = False
        self.asked: list[str] = []

    def wall(self) -> float:
        return 0.0

    def started_at(self) -> str | None:
        self.asked.append("bridge")
        return None if self.began is None else to_wire(from_epoch(WALL + self.began))

    def run_times(self) -> RunTimes | None:
        self.asked.append("systemd")
        return self.times

    def engine(self) -> EngineFacts:
        return EngineFacts("e", "1", live_restore=self.live_restore)

    def ended_by_itself(self, container_id: str) -> bool:
        return self.own

    def list_own(self) -> list[Any]:
        return []


class Rig:
    def __init__(self) -> None:
        self.now = 100.0
        self.driver: Any = Scripted()
        journal: Any = SimpleNamespace(fact=lambda name: "e")
        self.engine = Engine(DriverName.DOCKER, self.driver, journal, 10.0, clock=lambda: self.now)
        self.engine.outages = Outages(lambda: WALL + self.now, lambda: self.now)

    def at(self, now: float) -> None:
        self.now = now
        assert self.engine.look(0) is not None

    def ended_with_engine(self, at: float, asked: float | None) -> bool:
        facts = Facts("c", "n", "exited", False, 3, "", False, "x", to_wire(from_epoch(WALL + at)), {})
        return ended_with_engine(self.engine.around_end(facts, asked))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_an_engine_that_runs_on_is_not_asked_much(rig: Rig) -> None:
    rig.at(100)
    rig.at(200)
    assert not rig.ended_with_engine(190, asked=150)
    assert rig.driver.asked == ["bridge"]


def test_a_restart_that_no_look_met(rig: Rig) -> None:
    rig.at(100)
    rig.at(200)
    rig.driver.began = 203.0
    rig.at(205)
    assert rig.ended_with_engine(202, asked=150)
    assert rig.ended_with_engine(204, asked=150), "what a killed engine left, its next run ends"
    assert not rig.ended_with_engine(199, asked=150), "the engine took connections after that"
    assert not rig.ended_with_engine(219, asked=150)


def test_an_end_that_the_engine_told_of_is_the_programs_own(rig: Rig) -> None:
    rig.at(200)
    rig.driver.began, rig.driver.own = 203.0, True
    rig.at(205)
    assert not rig.ended_with_engine(202, asked=150)


@pytest.mark.parametrize(("at", "verdict"), [(180.0, False), (196.0, True), (203.5, True)])
def test_systemd_knows_when_the_stop_began_while_nobody_looked(rig: Rig, at: float, verdict: bool) -> None:
    rig.driver.began, rig.driver.times = 203.4, RunTimes(stopping=195.0, began=203.0, ready=203.6)
    rig.at(300)
    assert rig.ended_with_engine(at, asked=150) is verdict


def test_nobody_looked_and_nobody_knows(rig: Rig) -> None:
    rig.driver.began = 203.0
    rig.at(300)
    assert rig.ended_with_engine(160, asked=150)


def test_live_restore_counts_only_where_it_was_on_before(rig: Rig) -> None:
    """It was switched on in the settings, and Docker restarted: that ended everything once more."""
    rig.at(200)
    rig.driver.began, rig.driver.live_restore = 203.0, True
    rig.at(265)
    assert rig.ended_with_engine(202, asked=150)
    rig.at(300)
    rig.driver.began = 400.0
    rig.at(401)
    assert not rig.ended_with_engine(399, asked=310)


def test_an_engine_that_goes_down_is_waited_for(rig: Rig) -> None:
    def down() -> str:
        raise EngineUnavailable("refused")

    rig.driver.started_at = down
    with pytest.raises(EngineUnavailable):
        rig.ended_with_engine(150, asked=100)
