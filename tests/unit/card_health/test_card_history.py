"""The history of what cards measure: steps, gaps, bounds."""

from __future__ import annotations

import sys

import pytest

from runtime.protocol.hardware import GpuStats
from runtime.protocol.nodes import NodeState
from runtime.server.services.history import CARDS_CAP, DAY, STEP_S, History, Kept
from runtime.server.services.node_view import NodeView

START = 29_000_000
"""A minute since 1970, the first of an hour no more than any other."""


class Nodes:
    """One node whose newest beat says what a test wants."""

    def __init__(self) -> None:
        self.state = NodeState.ONLINE
        self.measured: list[GpuStats] = []

    def node_ids(self) -> list[str]:
        return ["gpu-a"]

    def view(self, node_id: str) -> NodeView:
        return NodeView(node_id, self.state)

    def gpu_stats(self, _node_id: str) -> list[GpuStats]:
        return self.measured


class Clock:
    minute = float(START)

    def __call__(self) -> float:
        return self.minute * STEP_S


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(nodes: Nodes, clock: Clock) -> History:
    return History(nodes, clock)  # type: ignore[arg-type]


def test_one_point_a_minute_and_none_while_the_node_is_not_heard(history: History, nodes: Nodes, clock: Clock) -> None:
    for minute in range(6):
        nodes.state = NodeState.UNREACHABLE if minute in (2, 3) else NodeState.ONLINE
        for part in (0.0, 0.1, 0.9):
            clock.minute = START + minute + part
            nodes.measured = [GpuStats("GPU-a", temperature_c=30.0 + minute)]
            history.tick()
    found = history.read("GPU-a")
    assert found.step_s == 60
    assert [point.temperature_c for point in found.points] == [30, 31, 34, 35]
    assert found.points[0].time == "2025-02-19T21:20:00.000Z"


def test_what_was_not_measured_is_no_number(history: History, nodes: Nodes) -> None:
    nodes.measured = [GpuStats("GPU-a", temperature_c=0, power_w=70.25), GpuStats("GPU-b")]
    history.tick()
    (point,) = history.read("GPU-a").points
    assert (point.temperature_c, point.utilization_pct, point.memory_used_mib, point.power_w) == (0, None, None, 70.25)
    assert history.read("GPU-b").points == [] and not history.knows("GPU-b")
    assert history.read("GPU-c").points == []


def test_a_day_is_kept_and_no_more(history: History, nodes: Nodes, clock: Clock) -> None:
    nodes.measured = [GpuStats("GPU-a", 0, 61.5, 97.0, 81_000, 690.25)]
    for minute in range(2 * DAY):
        clock.minute = START + minute
        history.tick()
    points = history.read("GPU-a").points
    assert len(points) == DAY
    assert {(p.temperature_c, p.utilization_pct, p.memory_used_mib, p.power_w) for p in points} == {
        (61.5, 97, 81_000, 690.25)
    }
    nodes.measured = []
    clock.minute += DAY
    history.tick()
    assert not history.knows("GPU-a")


def test_the_space_of_a_card_is_bounded() -> None:
    kept = Kept()
    for minute in range(3 * DAY):
        noise = (minute * 7919) % 1000
        kept.add(START + minute, GpuStats("GPU-a", 0, 30 + noise / 31, noise / 10, noise * 80, noise * 0.7))
    stored = sum(sys.getsizeof(hour) for _, hour in kept.hours) + sys.getsizeof(kept.open)
    assert len(kept.hours) <= 25 and stored < 32 * 1024


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([0, -1, 1], [0, 1], id="a step back adds nothing and loses nothing"),
        pytest.param([600, 601, 0, 1], [0, 1], id="what a clock far ahead stored is dropped"),
    ],
)
def test_a_clock_that_is_set_back(
    history: History, nodes: Nodes, clock: Clock, steps: list[int], expected: list[int]
) -> None:
    for step in steps:
        clock.minute = START + step
        nodes.measured = [GpuStats("GPU-a", power_w=step)]
        history.tick()
    assert [point.power_w for point in history.read("GPU-a").points] == expected


def test_cards_without_end_are_not_taken(history: History) -> None:
    history.add(START, (GpuStats(f"GPU-{number}", power_w=1) for number in range(CARDS_CAP + 10)))
    assert history.knows(f"GPU-{CARDS_CAP - 1}") and not history.knows(f"GPU-{CARDS_CAP}")
