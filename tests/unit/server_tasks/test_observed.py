"""What beats say of tasks: only what is new is written, and doubt concludes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runtime.protocol.heartbeat import Heartbeat, TaskHealth
from runtime.protocol.nodes import NodeState
from runtime.server.services.node_view import NodeView
from runtime.server.services.observed import STALL_BEATS, STALL_GRACE_S, Change, Observer


class Beats:
    """Feeds an observer without worker or database, and collects what it would write."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.seq = 0
        self.observer = Observer(self, self, clock=lambda: self.now)  # type: ignore[arg-type]

    def on_beat(self, listener: Callable[..., None]) -> None:
        self.listener = listener

    def on_revision(self, listener: Callable[[int], None]) -> None:
        self.revision_listener = listener

    def beat(self, *claims: TaskHealth, live: list[str] | None, **more: Any) -> list[str]:
        self.seq += 1
        beat = Heartbeat(1, "gpu-a", "i" * 8, 1, self.seq, task_health=list(claims), live_task_ids=live, **more)
        known = frozenset(live) if live is not None else None
        self.listener("gpu-a", NodeView("gpu-a", NodeState.ONLINE, live_task_ids=known), beat)
        found: list[Change] = []
        while not self.observer._changes.empty():
            change = self.observer._changes.get()
            if change is not None and change.node_id:
                found.append(change)
        return [change.what + (f":{change.phase}" if change.phase else "") for change in found]

    def releasing(self, *holders: tuple[str, int]) -> None:
        self.observer._releasing = {"gpu-a": frozenset(holders)}


def claim(phase: str, uid: str = "u1", attempt: int = 1, task_id: str = "t1") -> TaskHealth:
    return TaskHealth(task_id, uid, attempt, phase)


def test_phases_are_told_once() -> None:
    beats = Beats()
    assert beats.beat(live=[]) == []
    assert beats.beat(claim("claimed"), live=[]) == ["phase:claimed"]
    assert beats.beat(claim("claimed"), live=[]) == []
    assert beats.beat(claim("loading"), live=["t1"]) == ["phase:loading", "started"]
    assert beats.beat(claim("running"), live=["t1"]) == ["phase:running"]


def test_what_was_there_when_the_server_started_is_no_news() -> None:
    beats = Beats()
    assert beats.beat(claim("running"), live=["t1"]) == ["started"]


@pytest.mark.case("FC-003")
def test_missing_beats_stall_a_task_only_after_the_grace_and_three_in_a_row() -> None:
    """A snapshot from before the start must not condemn work that has just begun."""
    beats = Beats()
    beats.beat(live=[])
    beats.beat(claim("running"), live=["t1"])
    for _ in range(STALL_BEATS + 2):
        assert beats.beat(claim("running"), live=[]) == []
    beats.now += STALL_GRACE_S
    assert beats.beat(claim("running"), live=["t1"]) == []
    for _ in range(STALL_BEATS - 1):
        assert beats.beat(claim("running"), live=[]) == []
    assert beats.beat(claim("running"), live=None) == [], "could not look is not missing"
    assert beats.beat(claim("running"), live=[]) == ["stalled"]
    assert beats.beat(claim("running"), live=[]) == []
    assert beats.beat(claim("running"), live=["t1"]) == ["recovered"]


def test_a_stall_is_remembered_through_other_phases_and_a_restart_of_the_server() -> None:
    """The flag stood for ever on a task that was well, once its phase had changed in between."""
    beats = Beats()
    beats.beat(claim("running"), live=["t1"])
    beats.now += STALL_GRACE_S
    for _ in range(STALL_BEATS):
        beats.beat(claim("running"), live=[])
    beats.beat(claim("stopping"), live=[])
    assert beats.beat(claim("running"), live=["t1"])[-1] == "recovered"
    later = Beats()
    later.observer._stalled_before = {("gpu-a", ("u1", 1))}
    later.beat(claim("running"), live=[])
    assert later.beat(claim("running"), live=["t1"]) == ["recovered"]
    assert later.beat(claim("running"), live=["t1"]) == []


def test_a_task_that_is_still_loading_is_not_stalled() -> None:
    beats = Beats()
    beats.beat(live=[])
    beats.beat(claim("loading"), live=[])
    beats.now += 10 * STALL_GRACE_S
    for _ in range(2 * STALL_BEATS):
        assert beats.beat(claim("loading"), live=[]) == []


@pytest.mark.parametrize(
    ("claims", "live", "more"),
    [
        ((claim("running"),), ["t1"], {}),
        ((claim("reporting"),), [], {}),
        ((), None, {}),
        ((), ["t1"], {}),
    ],
)
def test_a_card_is_not_free_while_its_holder_may_be_there(
    claims: tuple[TaskHealth, ...], live: list[str] | None, more: dict[str, Any]
) -> None:
    beats = Beats()
    beats.beat(live=[])
    beats.releasing(("u1", 1))
    for _ in range(5):
        assert "gone" not in beats.beat(*claims, live=live, **more)


def test_a_card_is_free_when_two_beats_do_not_know_its_holder() -> None:
    beats = Beats()
    beats.beat(live=[])
    beats.releasing(("u1", 1))
    assert beats.beat(claim("running", attempt=2), live=["t1"]) == ["phase:running", "started"]
    assert beats.beat(claim("running", attempt=2), live=["t1"]) == ["gone"]
    assert beats.beat(claim("running", attempt=2), live=["t1"]) == []
