"""How an end is named: a table of facts to conclusions."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.agent.drivers.driver import Facts
from runtime.agent.tasks.classify import Circumstances, Sent, Stop, StopReason, classify
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Status

EXITED = Facts(
    id="c" * 64,
    name="task-a",
    state="exited",
    running=False,
    exit_code=0,
    error="",
    oom_killed=False,
    started_at="2026-03-01T12:00:00.5Z",
    finished_at="2026-03-01T12:01:00.123456789Z",
    labels={},
)
END = 1772366460.0  # 2026-03-01T12:01:00Z
NOTHING = Circumstances()


def facts(**changes: object) -> Facts:
    return dataclasses.replace(EXITED, **changes)


def stopped(reason: StopReason, sent: Sent = Sent.SENT, at: float = END - 10) -> Circumstances:
    return Circumstances(stop=Stop(reason, at, sent))


TABLE = [
    ("exit 0", facts(), NOTHING, Status.COMPLETED, Reason.EXITED, 0),
    ("exit 3", facts(exit_code=3), NOTHING, Status.FAILED, Reason.EXITED, 3),
    ("exit 0, a child was killed for memory", facts(oom_killed=True), NOTHING, Status.COMPLETED, Reason.EXITED, 0),
    ("oom", facts(exit_code=137, oom_killed=True), NOTHING, Status.FAILED, Reason.OOM_KILLED, 137),
    ("oom, own exit code", facts(exit_code=1, oom_killed=True), NOTHING, Status.FAILED, Reason.OOM_KILLED, 1),
    ("killed from outside", facts(exit_code=137), NOTHING, Status.FAILED, Reason.SIGNALLED, 137),
    ("segmentation fault", facts(exit_code=139), NOTHING, Status.FAILED, Reason.SIGNALLED, 139),
    ("128 is no signal", facts(exit_code=128), NOTHING, Status.FAILED, Reason.EXITED, 128),
    ("255 is no signal", facts(exit_code=255), NOTHING, Status.FAILED, Reason.EXITED, 255),
    ("timeout, exit 0", facts(), stopped(StopReason.TIMEOUT), Status.FAILED, Reason.TIMEOUT, 124),
    ("timeout, killed", facts(exit_code=137), stopped(StopReason.TIMEOUT), Status.FAILED, Reason.TIMEOUT, 124),
    ("operator, exit 0", facts(), stopped(StopReason.OPERATOR), Status.STOPPED, Reason.STOPPED_BY_OPERATOR, 0),
    (
        "operator, 143",
        facts(exit_code=143),
        stopped(StopReason.OPERATOR),
        Status.STOPPED,
        Reason.STOPPED_BY_OPERATOR,
        143,
    ),
    ("health", facts(exit_code=143), stopped(StopReason.HEALTH), Status.FAILED, Reason.HEALTH_FAILED, 143),
    ("start limit", facts(exit_code=143), stopped(StopReason.START_TIMEOUT), Status.FAILED, Reason.START_TIMEOUT, 143),
    ("ended before our signal", facts(), stopped(StopReason.OPERATOR, Sent.MISSED), Status.COMPLETED, Reason.EXITED, 0),
    (
        "died before the answer, ended later",
        facts(),
        stopped(StopReason.TIMEOUT, Sent.INTENDED, END - 1),
        Status.FAILED,
        Reason.TIMEOUT,
        124,
    ),
    (
        "died before the signal, ended earlier",
        facts(exit_code=4),
        stopped(StopReason.TIMEOUT, Sent.INTENDED, END + 1),
        Status.FAILED,
        Reason.EXITED,
        4,
    ),
    (
        "stop wins over a restart",
        facts(exit_code=143),
        Circumstances(stop=Stop(StopReason.OPERATOR, END, Sent.SENT), engine_restarted=True),
        Status.STOPPED,
        Reason.STOPPED_BY_OPERATOR,
        143,
    ),
    (
        "never started",
        facts(state="created", started_at=None, finished_at=None),
        NOTHING,
        Status.FAILED,
        Reason.NEVER_STARTED,
        None,
    ),
    (
        "port taken",
        facts(
            state="created",
            started_at=None,
            exit_code=128,
            error="Bind for 0.0.0.0:3000 failed: port is already allocated",
        ),
        NOTHING,
        Status.FAILED,
        Reason.PORT_IN_USE,
        None,
    ),
    (
        "start refused",
        facts(state="created", started_at=None),
        Circumstances(start_error="OCI runtime create failed: something"),
        Status.FAILED,
        Reason.START_FAILED,
        None,
    ),
    (
        "init found no program",
        facts(exit_code=127),
        Circumstances(missing_program='exec: "x": no such file or directory'),
        Status.FAILED,
        Reason.START_FAILED,
        None,
    ),
    ("program's own 127", facts(exit_code=127), NOTHING, Status.FAILED, Reason.EXITED, 127),
    (
        "engine went down, exit 0",
        facts(),
        Circumstances(engine_restarted=True),
        Status.FAILED,
        Reason.ENGINE_RESTARTED,
        0,
    ),
    (
        "machine went down",
        facts(exit_code=255),
        Circumstances(host_restarted=True),
        Status.FAILED,
        Reason.HOST_RESTARTED,
        None,
    ),
    (
        "machine went down after it",
        facts(exit_code=7),
        Circumstances(host_restarted=True),
        Status.FAILED,
        Reason.HOST_RESTARTED,
        7,
    ),
    (
        "machine went down while it was stopped",
        facts(exit_code=255),
        Circumstances(stop=Stop(StopReason.OPERATOR, END, Sent.SENT), host_restarted=True),
        Status.STOPPED,
        Reason.STOPPED_BY_OPERATOR,
        None,
    ),
    ("dead", facts(state="dead", exit_code=0), NOTHING, Status.FAILED, Reason.END_UNKNOWN, 0),
    ("no exit code", facts(exit_code=None), NOTHING, Status.FAILED, Reason.END_UNKNOWN, None),
]


@pytest.mark.parametrize(
    ("seen", "beside", "status", "reason", "code"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_end(seen: Facts, beside: Circumstances, status: Status, reason: Reason, code: int) -> None:
    conclusion = classify(seen, beside)
    assert (conclusion.status, conclusion.reason, conclusion.exit_code) == (status, reason, code)


def test_a_child_killed_for_memory_is_a_warning() -> None:
    conclusion = classify(facts(oom_killed=True), NOTHING)
    assert (conclusion.error, [warning.code for warning in conclusion.warnings]) == (None, ["oom_inside"])
    both = classify(dataclasses.replace(facts(oom_killed=True), restarted=2), NOTHING)
    assert [warning.code for warning in both.warnings] == ["oom_inside", "started_again"]
    assert "2 time(s)" in both.warnings[1].detail and both.error is None


@pytest.mark.case("FC-020")
def test_137_without_evidence_is_a_signal() -> None:
    """A manual kill was called out-of-memory, and a real one was not: only the flag decides, and our own stop."""
    killed = facts(exit_code=137)
    assert classify(killed, NOTHING).reason is Reason.SIGNALLED
    assert "signal 9" in str(classify(killed, NOTHING).error)
    assert classify(killed, stopped(StopReason.OPERATOR)).reason is Reason.STOPPED_BY_OPERATOR
    assert classify(facts(exit_code=137, oom_killed=True), NOTHING).reason is Reason.OOM_KILLED
