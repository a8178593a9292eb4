"""When a container started, by clocks that do not agree."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Optional

import pytest

from runtime.agent.tasks.classify import StopReason
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.agent.tasks.watch import Watch
from runtime.protocol.tasks import TaskSpec

DAY_S = 86400.0
AT = "2026-01-01T00:00:00Z"
WALL = 1767225600.0


@pytest.mark.case("FC-015")
@pytest.mark.parametrize(
    ("asked_mono", "wall_step", "started"),
    [
        (98.0, 0.0, 99.0),  # the engine's time tells to the moment: a second ago
        (98.0, DAY_S, 98.0),  # the clock was set forward: not before the start was asked for
        (98.0, -DAY_S, 100.0),  # set back: not after now
        (None, 0.0, 99.0),  # rebuilt from labels: the engine's time is all there is
    ],
)
def test_a_clock_that_was_set_takes_no_time_from_a_task(
    asked_mono: Optional[float], wall_step: float, started: float
) -> None:
    """The clock went forward by a day between the start and the first look: the task was out of its time at once."""
    parts: Any = SimpleNamespace(boot="boot", clock=lambda: 100.0, wall=lambda: WALL + 1.0 + wall_step)
    record = ClaimRecord(
        Key("u", 1), "a", "cp", "t", Stage.STARTING, TaskSpec("a"),
        asked_mark="boot" if asked_mono is not None else None, asked_mono=asked_mono,
    )  # fmt: skip
    facts: Any = SimpleNamespace(started_at=AT, pid=0, id="c")
    assert Watch(parts, lambda held: None).started_mono(Held(record), facts) == started


@pytest.mark.parametrize(
    ("asked", "started", "restarted"),
    [
        (None, None, False),
        ("b1", "b1", True),
        ("b1", None, True),  # the agent went down with the machine, before it had seen the start
        ("b1", "b2", False),
        ("b2", None, False),
    ],
)
def test_a_machine_that_went_down_right_after_a_start_is_remembered(
    asked: Optional[str], started: Optional[str], restarted: bool
) -> None:
    spec = TaskSpec("a")
    record = ClaimRecord(
        Key("u", 1), "a", "cp", "t", Stage.STARTING, spec, asked_mark=asked, started_mark=started, started_mono=1.0
    )
    assert record.machine_restarted("b2") is restarted


@pytest.mark.parametrize(("reason", "grace_s"), [(StopReason.VOLUME, 0.0), (StopReason.OPERATOR, 3600.0)])
def test_a_program_with_a_folder_that_it_was_not_given_gets_no_grace(reason: StopReason, grace_s: float) -> None:
    sent: list[str] = []
    parts: Any = SimpleNamespace(
        boot="boot",
        clock=lambda: 100.0,
        wall=lambda: WALL,
        step=lambda *step: None,
        write=lambda held, **changes: None,
        driver_of=lambda held: SimpleNamespace(signal=lambda container, signal: sent.append(signal) or True),
        timers=SimpleNamespace(at=lambda *when: None),
    )
    held = Held(ClaimRecord(Key("u", 1), "a", "cp", "t", Stage.RUNNING, TaskSpec("a", stop_grace_s=3600.0)))
    held.stop(reason)
    facts: Any = SimpleNamespace(id="c", stop_signal="SIGTERM")
    Watch(parts, lambda held: None).end(held, facts)
    assert sent == (["SIGTERM"] if grace_s else ["SIGTERM", "SIGKILL"])
