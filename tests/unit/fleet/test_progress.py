"""Events become the run's state and the lines that people read."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.fleet.progress import Progress, Stage, remaining_s
from runtime.fleet.reasons import Line
from tests.unit.fleet.events import Event, begins, fails, play, says, stats, unreachable, well

WAVES = "Upgrade in waves"


def told(progress: Progress, *events: Event) -> list[str]:
    """The lines of these events, a second apart."""
    lines: list[Line] = []
    for at, event in enumerate(events):
        lines += progress.apply(event, float(at))
    return [f"{line.host}: {line.text}" if line.host else line.text for line in lines]


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("node_preflight/main", "a: is checked"),
        ("agent/look", "a: is looked at"),
        ("agent/change", "a: gets the agent"),
        ("agent/rescue", "a: is put back"),
        ("agent/confirm", "a: is waited for"),
        ("agent/cordon", "a: gets no new tasks"),
        ("agent/uninstall", "a: loses its agent"),
        ("control_plane/main", "a: gets the control plane"),
        ("docker_engine/main", "a: gets its engine looked after"),
        ("someones/main", "a: is at work: someones"),
        ("/deploy", "a: is at: Do it"),
        # Once for all hosts, whatever host Ansible names:
        ("distribution/stage", "the builds are staged and all places compared"),
        ("node_preflight/settings", "inventory and settings are checked"),
        ("agent/begin", "the control plane is asked for its nodes"),
    ],
)
def test_a_task_is_a_phase_in_words(where: str, line: str) -> None:
    assert told(Progress(["a", "b"]), begins("a", where), begins("a", where)) == [line]


@pytest.mark.parametrize(
    "event",
    [
        begins("a", "agent/wave"),
        begins("a", "agent/prepare"),
        begins("a", "agent/say"),
        begins("a", "agent/main", task_action="ansible.builtin.include_tasks"),
        begins("a", "agent/main", task_action="ansible.builtin.validate_argument_spec"),
        begins("localhost", "agent/look"),
        {"event": "runner_on_start", "event_data": {}},
        {"event": "verbose", "stdout": "text"},
        {"event": "runner_on_ok", "event_data": "not an object"},
        {},
    ],
)
def test_the_plays_own_steps_and_strange_events_move_no_host(event: Event) -> None:
    progress = Progress(["a"])
    assert told(progress, event) == []
    assert progress.hosts["a"].stage is Stage.WAITING
    assert list(progress.hosts) == ["a"]


def test_a_host_begins_moves_and_ends() -> None:
    progress = Progress(["a"])
    lines = told(
        progress,
        begins("a", "agent/look"),
        begins("a", "agent/change"),
        well("a", "agent/change", changed=True),
        says("a", "changed", "1.0-a", "1.1-b"),
        begins("a", "agent/confirm"),
        begins("a", "agent/uncordon"),
        stats(),
    )
    assert lines == [
        "a: is looked at",
        "a: gets the agent",
        "a: changed 1.0-a -> 1.1-b",
        "a: is waited for",
        "a: takes new tasks again",
    ]
    host = progress.hosts["a"]
    assert (host.stage, host.began, host.ended, host.changes) == (Stage.ENDED, 0.0, 6.0, 1)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (says("a", "unchanged", "1", "1"), "a: unchanged 1"),
        (says("a", "changed", "", "1"), "a: changed 1"),
        (says("a", "restored", "1", "2", "it is silent"), "a: restored 1 -> 2: it is silent"),
        (says("a", "refused", reason="no key"), "a: refused no key"),
        (
            well("a", control_plane_outcome={"result": "changed", "from": "1", "to": "2", "backup": {}}),
            "a: changed 1 -> 2",
        ),
    ],
)
def test_the_last_word_is_the_roles_own(said: Event, line: str) -> None:
    assert told(Progress(["a"]), said) == [line]


@pytest.mark.parametrize("said", ["well", ["changed"], {"result": "fine"}, {}, None, 7])
def test_a_word_that_is_none_of_ours_is_no_end(said: Any) -> None:
    progress = Progress(["a"])
    assert told(progress, begins("a"), well("a", agent_outcome=said)) == ["a: gets the agent"]
    assert progress.hosts["a"].stage is Stage.UNDER_WAY


def test_waves_are_the_batches_of_the_play_with_serial() -> None:
    progress = Progress(["a", "b", "c"], [WAVES], [1, 2])
    lines = told(
        progress,
        play("Look"),
        begins("a", "node_preflight/main"),
        play(WAVES),
        begins("a", "agent/wave"),
        begins("a", "agent/look"),
        says("a", "changed"),
        play(WAVES),
        begins("b", "agent/look"),
        begins("c", "agent/look"),
    )
    assert lines == [
        "a: is checked",
        "wave 1 of 2 begins",
        "a: is looked at",
        "a: changed",
        "wave 1 has ended: 1 host in 4 s, 1 left",
        "wave 2 of 2 begins",
        "b: is looked at",
        "c: is looked at",
    ]
    assert (progress.waves_done, progress.waves_total) == (1, 2)
    assert [wave.hosts for wave in progress.waves] == [["a"], ["b", "c"]]
    assert progress.reached(progress.hosts["c"])


def test_a_host_that_was_only_looked_at_waits_for_its_wave() -> None:
    progress = Progress(["a", "b"], [WAVES], [1, 1])
    told(progress, begins("a", "node_preflight/main"), begins("b", "node_preflight/main"), play(WAVES), begins("a"))
    assert [host.stage for host in progress.hosts.values()] == [Stage.UNDER_WAY, Stage.WAITING]
    assert progress.hosts["a"].began == 3.0


def test_a_wave_in_which_nothing_is_done_has_not_begun() -> None:
    """The play goes through its batches, and each says that it does not begin."""
    progress = Progress(["a", "b"], [WAVES], [1, 1])
    lines = told(
        progress,
        play(WAVES),
        begins("a"),
        says("a", "failed", reason="x"),
        play(WAVES),
        begins("b", "agent/wave"),
        says("b", "skipped", reason="an earlier wave did not come back well: a"),
        begins("b", "agent/cordon"),
        play("Sum up"),
    )
    assert "wave 2 of 2 begins" not in lines
    assert progress.waves_done == 1
    assert not progress.reached(progress.hosts["b"])


def test_without_sizes_nobody_knows_how_many_waves_there_are() -> None:
    progress = Progress(["a", "b"], [WAVES])
    assert told(progress, play(WAVES), begins("a")) == ["wave 1 begins", "a: gets the agent"]
    assert progress.waves_total is None
    assert remaining_s(progress, 5.0) is None


@pytest.mark.parametrize(
    ("events", "at", "left"),
    [
        ([], 9.0, None),  # nothing has ended: nobody knows
        ([play(WAVES), begins("a")], 9.0, None),
        ([play(WAVES), begins("a"), play(WAVES)], 2.0, 4.0),  # two waves of 2 s each are left
        ([play(WAVES), begins("a"), play(WAVES), begins("b")], 3.0, 3.0),  # one second of them is gone
        ([play(WAVES), begins("a"), play(WAVES), begins("b")], 99.0, None),  # it takes longer than the first did
        ([play(WAVES), begins("a"), play(WAVES), begins("b"), play(WAVES), begins("c"), stats()], 9.0, 0.0),
    ],
)
def test_what_remains_is_known_from_waves_that_have_ended(events: list[Event], at: float, left: float | None) -> None:
    progress = Progress(["a", "b", "c"], [WAVES], [1, 1, 1])
    told(progress, *events)
    assert remaining_s(progress, at) == left


def test_more_waves_than_were_planned_leave_the_rest_unknown() -> None:
    progress = Progress(["a", "b"], [WAVES], [2])
    told(progress, play(WAVES), begins("a"), play(WAVES), begins("b"))
    assert remaining_s(progress, 4.0) is None


def test_what_goes_on_after_a_failure_was_rescued() -> None:
    progress = Progress(["a"])
    told(progress, begins("a"), fails("a", "it broke"))
    assert progress.failed(progress.hosts["a"])
    told(progress, begins("a", "agent/rescue"))
    assert not progress.failed(progress.hosts["a"])
    assert progress.hosts["a"].fault == "it broke"


def test_a_host_that_answers_again_is_not_unreachable() -> None:
    progress = Progress(["a"])
    assert told(progress, begins("a"), unreachable("a")) == [
        "a: gets the agent",
        "a: cannot be reached: Do it: no route",
    ]
    assert progress.hosts["a"].unreachable
    told(progress, begins("a"))
    assert not progress.hosts["a"].unreachable


def test_what_fails_once_for_all_is_the_controllers() -> None:
    progress = Progress(["a", "b"])
    told(progress, begins("a", "distribution/compare"), fails("a", "md5 differs", "distribution/compare"))
    told(progress, stats(failures={"a": 1}))
    assert progress.controller.failing
    assert progress.controller.fault == "md5 differs"
    assert not progress.failed(progress.hosts["a"])


def test_the_summary_tells_of_failures_and_is_none() -> None:
    progress = Progress(["a"])
    told(progress, says("a", "changed"), fails("a", "not as wanted: b", "agent/summary"), stats(failures={"a": 1}))
    assert not progress.failed(progress.hosts["a"])
    assert not progress.controller.failing


def test_what_the_control_plane_says_at_the_end_is_newer() -> None:
    progress = Progress(["a"])
    row = {"host": "a", "result": "failed", "reason": "was confirmed, and is lost now"}
    summed = well("localhost", "agent/summary", agent_summary={"rows": [row, "odd", {"host": "x", "result": "failed"}]})
    told(progress, says("a", "changed"), summed)
    assert progress.hosts["a"].said == row
    assert list(progress.hosts) == ["a"]


@pytest.mark.parametrize(
    ("where", "said", "lines"),
    [
        ("node_preflight/report", "a  key  refused\n\nb  clock  late", ["a  key  refused", "b  clock  late"]),
        ("distribution/compare", "Found:\nmirror  differs", ["Found:", "mirror  differs"]),
        ("agent/change", "1.0 -> 1.1", ["a: 1.0 -> 1.1"]),
        ("agent/summary", "TABLE", []),  # the command has its own
        ("distribution/verify", "TABLE", []),
        ("/deploy", "hello", []),
        ("agent/change", {"not": "words"}, []),
    ],
)
def test_what_a_role_says_is_shown_line_by_line(where: str, said: Any, lines: list[str]) -> None:
    event = well("a", where)
    event["event_data"] |= {"task_action": "ansible.builtin.debug", "res": {"msg": said}}
    assert told(Progress(["a"]), event) == lines


def test_ignored_failures_are_none() -> None:
    progress = Progress(["a"])
    told(progress, begins("a"), fails("a", "never mind", ignore_errors=True))
    assert not progress.failed(progress.hosts["a"])


def test_what_ansible_complains_of_is_kept_but_not_without_end() -> None:
    progress = Progress(["a"])
    for number in range(50):
        progress.apply({"event": "error", "stdout": f"[ERROR]: {number}\n"}, 0.0)
    assert progress.errors[:2] == ["[ERROR]: 0", "[ERROR]: 1"]
    assert len(progress.errors) == 20
