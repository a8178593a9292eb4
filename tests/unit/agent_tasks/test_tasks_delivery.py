"""Delivery and removal with a scripted server and engine; pool and timers."""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.drivers.errors import DriverError, EngineRefused
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.link.seen import SeenRevisions
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.classify import Conclusion
from runtime.agent.tasks.delivery import Outbound, readable
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.journal import Journal, open_journal
from runtime.agent.tasks.log_buffer import whole_characters
from runtime.agent.tasks.mounting import Mounting
from runtime.agent.tasks.parts import Claims, Parts
from runtime.agent.tasks.pool import Pool
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage
from runtime.agent.tasks.steps import Step
from runtime.agent.tasks.timers import Timers
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Driver as DriverName
from runtime.protocol.states import Phase, Status
from runtime.protocol.tasks import TaskSpec, TaskWarning

KEY = Key("uid-1", 1)
RECORD = ClaimRecord(KEY, "a", "cp", "token", Stage.CONCLUDED, TaskSpec("a"), container_id="c" * 64)
LETTER = Letter(KEY, "a", "cp", "token", Status.RUNNING, Status.COMPLETED, exit_code=0, log_tail="x" * 10)


class Scripted:
    """Raises or returns what was written down, one after the other; the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Rig:
    def __init__(self, folder: Path) -> None:
        self.journal: Journal = open_journal(folder)
        self.update = Scripted(None)
        self.remove = Scripted(None)
        self.signal = Scripted(True)
        self.inspect = Scripted(SimpleNamespace(running=False))
        self.steps: list[Step] = []
        self.advanced = threading.Event()
        self.planned: list[float] = []
        self.claims = Claims()
        client: Any = SimpleNamespace(update_task=self.update, control_plane_id="cp", seen=SeenRevisions())
        driver: Any = SimpleNamespace(
            outlives_machine=True, remove=self.remove, inspect=self.inspect, signal=self.signal
        )
        timers: Any = SimpleNamespace(after=lambda name, seconds, action: self.planned.append(seconds))
        settings = AgentSettings(report_attempts=3, report_backoff_first_s=0.01, report_backoff_max_s=0.01)
        pool = Pool("test", 2)
        self.parts = Parts(
            settings=settings,
            client=client,
            drivers={DriverName.DOCKER: SimpleNamespace(driver=driver)},  # type: ignore[dict-item]
            journal=self.journal,
            identity=SimpleNamespace(node_id="n"),  # type: ignore[arg-type]
            snapshot=lambda: None,  # type: ignore[arg-type, return-value]
            steps=pool,
            pulls=pool,
            reports=pool,
            probes=pool,
            timers=timers,
            boot="boot",
            trace=lambda uid, attempt, step: self.steps.append(step),
        )
        self.word = ServerWord()
        self.outbound = Outbound(
            self.parts, self.claims, self.word, Mounting(self.parts), lambda held: self.advanced.set()
        )
        self.held = Held(RECORD)
        self.claims.add(self.held)
        self.journal.save(RECORD)
        self.journal.conclude(RECORD, LETTER)

    def report(self) -> None:
        self.outbound.report(self.held)
        end = time.monotonic() + 10
        while self.held.reporting and time.monotonic() < end:
            self.advanced.wait(0.01)
        assert not self.held.reporting


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.journal.close()


def refused(status: int, code: str, **members: Any) -> Refused:
    return Refused(ProblemDocument(status, code, "x", members=members))


def test_an_unknown_outcome_is_asked_again(rig: Rig) -> None:
    rig.update.answers = [Unavailable("reset"), Unavailable("503", answered=True), None]
    rig.report()
    assert len(rig.update.calls) == 3
    assert rig.held.record.stage is Stage.DONE
    assert rig.journal.undelivered() == 0
    assert rig.steps == [Step.SEND_REPORT, Step.REPORT_STORED]


@pytest.mark.parametrize("error", [None, "it ended oddly"])
def test_what_is_true_beside_an_end_is_a_warning_and_no_error(rig: Rig, error: str | None) -> None:
    """What happened: a completed task had an error, for one of its processes had been killed for memory."""
    beside = TaskWarning("oom_inside", "a process in it was killed for memory")
    rig.held.record = dataclasses.replace(RECORD, stage=Stage.RUNNING)
    conclusion = Conclusion(Status.COMPLETED, Reason.EXITED, 0, error, warnings=(beside,))
    rig.outbound.conclude(rig.held, conclusion, None)
    rig.report()
    (update,) = [call[1] for call in rig.update.calls]
    assert (update.error, update.warnings) == (error, [beside])


def test_a_server_that_stays_away_keeps_the_conclusion(rig: Rig) -> None:
    rig.update.answers = [Unavailable("away")]
    rig.report()
    assert len(rig.update.calls) == 3
    assert (rig.held.record.stage, rig.journal.undelivered()) == (Stage.CONCLUDED, 1)
    assert rig.held.report_failed_at is not None
    assert rig.remove.calls == []


def test_another_terminal_state_counts_as_delivered(rig: Rig) -> None:
    rig.update.answers = [refused(409, "state_conflict", task_status="cancelled", attempt=1, node_id="n")]
    rig.report()
    letter = rig.journal.letter(KEY)
    assert letter is not None and letter.outcome == "delivered"
    assert rig.held.record.stage is Stage.DONE


def test_a_body_that_is_too_large_goes_without_its_log(rig: Rig) -> None:
    rig.update.answers = [refused(413, "body_too_large"), None]
    rig.report()
    assert [call[1].log_tail for call in rig.update.calls] == ["x" * 10, None]
    assert rig.journal.undelivered() == 0


def test_another_control_plane_is_told_nothing(rig: Rig) -> None:
    rig.parts.client.control_plane_id = "fresh"  # type: ignore[misc]
    rig.report()
    assert rig.update.calls == []
    assert rig.journal.undelivered() == 1


def test_a_deleted_task_is_archived_after_three_proofs(rig: Rig) -> None:
    rig.update.answers = [Refused(ProblemDocument(404, "task_not_found", "x", control_plane_id="cp"))]
    now = [0.0]
    rig.parts.clock = lambda: now[0]
    for _ in range(3):
        assert rig.journal.undelivered() == 1
        rig.word.heard("cp", 1)
        rig.report()
        now[0] += 6
    letter = rig.journal.letter(KEY)
    assert letter is not None and letter.outcome == "deleted"


@pytest.mark.case("FC-010")
def test_a_removal_that_fails_is_tried_ever_more_rarely(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A container stuck in removal stayed for weeks, and its clean-up was tried in a tight loop or not at all."""
    rig.report()
    assert rig.journal.undelivered() == 0
    rig.remove.answers = [EngineRefused(409, "removal of container is already in progress")]
    with caplog.at_level(logging.WARNING):
        for _ in range(12):
            rig.outbound.remove(rig.held)
    assert rig.planned[:4] == [5.0, 10.0, 20.0, 40.0]
    assert rig.planned[-1] == 600.0
    assert caplog.text.count("cannot be removed") == 1
    assert rig.held.phase is Phase.STUCK
    assert "already in progress" in str(rig.held.health().detail)
    assert rig.claims.used() == 0
    rig.remove.answers = [None]
    rig.outbound.remove(rig.held)
    assert rig.claims.all() == [] and rig.journal.claims() == []
    assert rig.steps[-1] is Step.FORGET


def test_force_is_the_last_resort_and_never_for_what_runs(rig: Rig) -> None:
    rig.remove.answers = [DriverError("x"), None]
    rig.inspect.answers = [SimpleNamespace(running=False)]
    rig.outbound.remove(rig.held)
    rig.outbound.remove(rig.held)
    assert [call[1:] for call in rig.remove.calls] == [(), (True,)]


def test_what_somebody_started_again_after_its_end_is_stopped_before_it_is_removed(rig: Rig) -> None:
    """`docker restart` by hand: the end was reported, the card given on, and the program ran on it for ever."""
    rig.remove.answers = [EngineRefused(409, "it runs")]
    rig.inspect.answers = [SimpleNamespace(running=True, stop_signal="SIGQUIT")]
    rig.outbound.remove(rig.held)
    assert rig.signal.calls == []
    rig.outbound.remove(rig.held)
    rig.outbound.remove(rig.held)
    assert [call[1] for call in rig.signal.calls] == ["SIGQUIT", "SIGKILL"]
    assert len(rig.remove.calls) == 1
    assert min(rig.planned[1:]) >= RECORD.spec.stop_grace_s
    rig.remove.answers = [None]
    rig.inspect.answers = [SimpleNamespace(running=False)]
    rig.outbound.remove(rig.held)
    assert rig.claims.all() == []


def test_readable() -> None:
    assert readable(b"a\xff\xfe\0b") == "a\ufffd\ufffdb"
    assert readable("é!".encode()[1:]) == "!"
    assert readable(b"") == ""


def test_whole_characters() -> None:
    raw = "aé€".encode()
    assert [whole_characters(raw[:size]) for size in range(len(raw) + 1)] == [0, 1, 1, 3, 3, 3, 6]
    assert whole_characters(b"\xff\xff") == 2


def test_work_of_one_key_never_overlaps_and_other_keys_go_on() -> None:
    pool = Pool("test", 3)
    running: list[str] = []
    overlaps: list[str] = []
    done = threading.Semaphore(0)
    lock = threading.Lock()
    hold = threading.Event()

    def work(key: str) -> None:
        with lock:
            if key in running:
                overlaps.append(key)
            running.append(key)
        if key == "slow":
            hold.wait(10)
        with lock:
            running.remove(key)
        done.release()

    pool.submit("slow", lambda: work("slow"))
    for _ in range(50):
        for key in ("a", "b"):
            pool.submit(key, lambda key=key: work(key))  # type: ignore[misc]
    for _ in range(100):
        assert done.acquire(timeout=10)
    assert running == ["slow"]
    hold.set()
    assert done.acquire(timeout=10)
    assert overlaps == []
    assert pool.stop(5)


def test_the_second_work_of_a_key_waits_for_the_first() -> None:
    pool = Pool("test", 3)
    go, second, others = threading.Event(), threading.Event(), threading.Semaphore(0)
    pool.submit("a", lambda: go.wait(10))  # type: ignore[arg-type, return-value]
    for _ in range(3):
        pool.submit("a", second.set)
    for _ in range(20):
        pool.submit("b", others.release)  # type: ignore[arg-type]
    for _ in range(20):
        assert others.acquire(timeout=10)
    assert not second.is_set()
    go.set()
    assert second.wait(10)


def test_a_failing_step_does_not_end_its_worker() -> None:
    pool = Pool("test", 1)
    ran = threading.Event()
    pool.submit("a", lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    pool.submit("a", ran.set)
    assert ran.wait(10)


def test_timers_move_and_cancel() -> None:
    timers = Timers()
    timers.start()
    fired: list[str] = []
    last = threading.Event()
    now = time.monotonic()
    timers.at("moved", now + 0.01, lambda: fired.append("early"))
    timers.at("moved", now + 0.06, lambda: fired.append("moved"))
    timers.at("cancelled", now + 0.02, lambda: fired.append("cancelled"))
    timers.cancel("cancelled")
    timers.at("failing", now + 0.03, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    timers.at("first", now + 0.04, lambda: fired.append("first"))
    timers.at("last", now + 0.08, last.set)
    assert last.wait(10)
    assert fired == ["first", "moved"]
    timers.stop()


def test_a_timer_that_is_set_again_and_again_costs_no_memory() -> None:
    """A limit of a week was armed anew at each look at its container, and every time stayed until the week was over."""
    timers = Timers()
    for _ in range(1000):
        timers.after("a week", 7 * 86400.0, lambda: None)
        timers.after("cancelled", 7 * 86400.0, lambda: None)
        timers.cancel("cancelled")
    assert timers.waiting < 200
    timers.stop()


def test_a_disk_that_is_full_at_the_wrong_moment_keeps_no_report_from_being_tried_again(rig: Rig) -> None:
    """The server had the end, the journal could not note it: the claim waited for ever for a report under way."""
    full = Scripted(sqlite3.OperationalError("database or disk is full"))
    noted, rig.journal.delivered = rig.journal.delivered, full  # type: ignore[method-assign, assignment]
    rig.report()
    assert (rig.held.record.stage, rig.held.reporting) == (Stage.CONCLUDED, False)
    assert rig.held.report_failed_at is not None
    rig.journal.delivered = noted  # type: ignore[method-assign]
    rig.report()
    assert rig.held.record.stage is Stage.DONE


def test_what_another_control_plane_says_of_a_task_of_that_name_is_no_delivery(rig: Rig) -> None:
    """A fresh database behind the same URL held another task of the same name; after a restart nobody knew yet."""
    rig.parts.client.control_plane_id = None  # type: ignore[misc]
    problem = ProblemDocument(409, "state_conflict", "x", control_plane_id="fresh",
                              members={"task_status": "completed", "attempt": 1, "node_id": "n"})  # fmt: skip
    rig.update.answers = [Refused(problem)]
    rig.report()
    assert (rig.held.record.stage, rig.journal.undelivered()) == (Stage.CONCLUDED, 1)
