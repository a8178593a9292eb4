"""What a node's report may say, and what becomes of the task: the state table, row by row."""

from __future__ import annotations

import itertools

import pytest

from runtime.protocol.problems import Problem
from runtime.protocol.reasons import CLASS_OF, Reason, ReasonClass
from runtime.protocol.states import TRANSITIONS, Actor, Desired, Status, transition
from runtime.protocol.tasks import TaskUpdate
from runtime.server.services.tasks.rules import (
    RESTARTS,
    Outcome,
    judge,
    lost_outcome,
    outcome,
    reason_class,
    same_cause,
)


def update(source: Status, target: Status, **facts: object) -> TaskUpdate:
    return TaskUpdate("gpu-a", 1, "token-token", source, target, **facts)  # type: ignore[arg-type]


GOOD_FACTS: dict[Status, dict[str, object]] = {
    Status.COMPLETED: {"exit_code": 0, "reason": "exited"},
    Status.FAILED: {"exit_code": 3, "reason": "exited"},
    Status.STOPPED: {"exit_code": 0, "reason": "stopped_by_operator"},
    Status.PENDING: {"reason": "port_in_use"},
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(Status, Status)))
def test_every_pair_of_states_is_judged_as_the_table_says(source: Status, target: Status) -> None:
    said = update(source, target, **GOOD_FACTS.get(target, {}))
    edge = transition(source, target)
    if edge is None:
        with pytest.raises(Problem) as caught:
            judge(said)
        assert (caught.value.code, caught.value.status) == ("illegal_transition", 422)
    elif Actor.AGENT not in edge.by:
        with pytest.raises(Problem) as caught:
            judge(said)
        assert (caught.value.code, caught.value.status) == ("illegal_transition", 409)
    else:
        judge(said)


def test_the_table_has_both_kinds_of_edges() -> None:
    assert {actor for edge in TRANSITIONS for actor in edge.by} == set(Actor)


@pytest.mark.parametrize(
    ("target", "facts", "part"),
    [
        (Status.COMPLETED, {"exit_code": 1, "reason": "exited"}, "exit_code 0"),
        (Status.COMPLETED, {"exit_code": 0, "reason": "timeout"}, "reason exited"),
        (Status.FAILED, {"exit_code": 0}, "other than 0"),
        (Status.FAILED, {"exit_code": 1, "reason": "bored"}, "unknown reason 'bored'"),
        (Status.FAILED, {"exit_code": 0, "reason": "exited"}, "other than 0"),
        (Status.FAILED, {"reason": "exited"}, "other than 0"),
        (Status.FAILED, {"exit_code": 143, "reason": "stopped_by_operator"}, "is stopped, not failed"),
        (Status.STOPPED, {"exit_code": 0, "reason": "exited"}, "stopped_by_operator"),
        (Status.PENDING, {}, "infrastructure reason"),
        (Status.PENDING, {"reason": "exited"}, "infrastructure reason"),
        (Status.PENDING, {"reason": "port_in_use", "exit_code": 1}, "was started"),
    ],
)
def test_a_report_that_contradicts_itself_is_forbidden_now(target: Status, facts: dict[str, object], part: str) -> None:
    with pytest.raises(Problem, match=part) as caught:
        judge(update(Status.RUNNING, target, **facts))
    assert (caught.value.code, caught.value.status) == ("illegal_transition", 409)


@pytest.mark.parametrize(
    ("exit_code", "reason"),
    [
        (1, Reason.EXITED),
        (124, Reason.EXITED),
        (128, Reason.EXITED),
        (129, Reason.SIGNALLED),
        (137, Reason.SIGNALLED),
        (192, Reason.SIGNALLED),
        (193, Reason.EXITED),
        (255, Reason.EXITED),
        (None, Reason.END_UNKNOWN),
    ],
)
def test_a_failure_without_a_reason_gets_what_its_exit_code_tells(exit_code: int | None, reason: Reason) -> None:
    facts = {} if exit_code is None else {"exit_code": exit_code}
    assert judge(update(Status.RUNNING, Status.FAILED, **facts)) is reason


@pytest.mark.parametrize("facts", [{}, {"reason": "exited"}])
def test_completed_without_its_exit_code_names_what_is_missing(facts: dict[str, object]) -> None:
    with pytest.raises(Problem) as caught:
        judge(update(Status.RUNNING, Status.COMPLETED, **facts))
    assert (caught.value.code, caught.value.status) == ("invalid_task", 422)
    assert [(fault["path"], fault["found"]) for fault in caught.value.members["errors"]] == [("exit_code", "nothing")]


@pytest.mark.case("FC-022")
def test_a_polite_exit_after_stop_or_timeout_is_no_success() -> None:
    """A program that traps TERM ends with 0; the agent says what it had recorded before the signal."""
    stopped = update(Status.RUNNING, Status.STOPPED, exit_code=0, reason="stopped_by_operator")
    assert outcome(stopped, judge(stopped), Desired.STOP, 1, 1).status is Status.STOPPED
    timed_out = update(Status.RUNNING, Status.FAILED, exit_code=124, reason="timeout")
    result = outcome(timed_out, judge(timed_out), Desired.RUN, 1, 1)
    assert (result.status, result.reason) == (Status.FAILED, Reason.TIMEOUT)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.STOPPED_BY_OPERATOR])
@pytest.mark.parametrize("desired", list(Desired))
@pytest.mark.parametrize(("starts", "most"), [(1, 1), (1, 3), (3, 3)])
@pytest.mark.case("FC-021")
def test_only_infrastructure_ends_with_starts_left_are_queued_again(
    reason: Reason, desired: Desired, starts: int, most: int
) -> None:
    """A start that Docker refused (127, name taken) is not the program's fault; 125 from the program is."""
    said = update(Status.RUNNING, Status.FAILED, exit_code=125, reason=reason.value)
    result = outcome(said, judge(said), desired, starts, most)
    infrastructure = CLASS_OF[reason] is ReasonClass.INFRASTRUCTURE
    again = infrastructure and starts < most and desired in (Desired.RUN, Desired.SLEEP)
    assert result.status is (Status.PENDING if again else Status.FAILED)
    assert (result.ends, result.bad, result.ran) == (True, infrastructure, not infrastructure)
    assert not result.handed_back


@pytest.mark.parametrize(
    ("desired", "status", "reason"),
    [
        (Desired.RUN, Status.PENDING, Reason.DISK_FULL),
        (Desired.SLEEP, Status.PENDING, Reason.DISK_FULL),
        (Desired.STOP, Status.STOPPED, Reason.STOPPED_BY_OPERATOR),
        (Desired.DELETE, Status.STOPPED, Reason.STOPPED_BY_OPERATOR),
    ],
)
def test_a_hand_back_goes_to_pending_unless_nobody_wants_the_task(
    desired: Desired, status: Status, reason: Reason
) -> None:
    said = update(Status.RUNNING, Status.PENDING, reason="disk_full")
    result = outcome(said, judge(said), desired, 1, 1)
    assert result == Outcome(status, reason, ends=True, handed_back=True, bad=True)


def test_what_fails_asleep_stays_failed() -> None:
    said = update(Status.SLEEPING, Status.FAILED, reason="gpu_unavailable")
    assert outcome(said, judge(said), Desired.RUN, 1, 3).status is Status.FAILED


@pytest.mark.parametrize(
    ("status", "desired", "policy", "starts", "most", "wanted"),
    [
        (Status.RUNNING, Desired.RUN, "wait", 1, 3, None),
        (Status.RUNNING, Desired.RUN, "reschedule", 1, 3, Status.PENDING),
        (Status.RUNNING, Desired.SLEEP, "reschedule", 1, 3, Status.PENDING),
        (Status.RUNNING, Desired.RUN, "reschedule", 3, 3, Status.FAILED),
        (Status.RUNNING, Desired.RUN, "fail", 1, 3, Status.FAILED),
        (Status.RUNNING, Desired.STOP, "reschedule", 1, 3, None),
        (Status.RUNNING, Desired.DELETE, "fail", 1, 3, None),
        (Status.SLEEPING, Desired.SLEEP, "reschedule", 1, 3, None),
        (Status.SLEEPING, Desired.RUN, "fail", 1, 3, None),
    ],
)
def test_a_lost_node_moves_only_what_was_told_to_move(
    status: Status, desired: Desired, policy: str, starts: int, most: int, wanted: Status | None
) -> None:
    assert lost_outcome(status, desired, policy, starts, most) is wanted


def test_the_class_of_a_reason_is_read_from_the_one_table() -> None:
    assert reason_class(None) is None
    assert reason_class("disk_full") == "infrastructure"
    assert reason_class("exited") == "program"


BEFORE, THEN, LATER = "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z", "2026-01-01T00:00:02.000Z"


@pytest.mark.parametrize(
    ("reason", "claimed_at", "counted", "counted_at", "same"),
    [
        (Reason.HOST_RESTARTED, BEFORE, "host_restarted", THEN, True),
        (Reason.ENGINE_RESTARTED, BEFORE, "engine_restarted", THEN, True),
        (Reason.HOST_RESTARTED, THEN, "host_restarted", THEN, True),
        (Reason.HOST_RESTARTED, LATER, "host_restarted", THEN, False),
        (Reason.HOST_RESTARTED, BEFORE, "engine_restarted", THEN, False),
        (Reason.HOST_RESTARTED, BEFORE, None, None, False),
        (Reason.HOST_RESTARTED, None, "host_restarted", THEN, False),
        (Reason.DISK_FULL, BEFORE, "disk_full", THEN, False),
        (Reason.LOST_CONTAINER, BEFORE, "lost_container", THEN, False),
    ],
)
def test_one_restart_is_one_cause(
    reason: Reason, claimed_at: str | None, counted: str | None, counted_at: str | None, same: bool
) -> None:
    """A reboot under three tasks cordoned a healthy node; three reboots under one task each still do."""
    assert same_cause(reason, claimed_at, counted, counted_at) is same


def test_only_restarts_end_everything_at_once() -> None:
    assert set(RESTARTS) == {reason for reason in Reason if reason.value.endswith("_restarted")}
