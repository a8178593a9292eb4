"""Falling asleep, being told, waking: the steps over a real journal, with a scripted engine and server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from runtime.agent.drivers.driver import Facts
from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable, NotThere
from runtime.agent.link.errors import LinkError, Refused, Unavailable
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.checks import CheckFailed
from runtime.agent.tasks.classify import Conclusion, Sent, Stop, StopReason
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.intents import wakes
from runtime.agent.tasks.journal import Journal, open_journal
from runtime.agent.tasks.parts import Parts
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage
from runtime.agent.tasks.report import Delivery, is_so_already, move_update, read_refusal
from runtime.agent.tasks.sleeping import OTHER_SOURCES, Sleeping
from runtime.agent.tasks.watch import Watch
from runtime.protocol.hardware import Gpu
from runtime.protocol.heartbeat import Intent
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Phase, Status
from runtime.protocol.tasks import AssignedGpu, TaskSpec

KEY = Key("uid-1", 1)
FIRST_RUN = "2026-01-01T00:00:00Z"
SECOND_RUN = "2026-01-02T00:00:00Z"
CARD = AssignedGpu("GPU-0")


def facts(state: str, started_at: Optional[str] = FIRST_RUN, exit_code: int = 143) -> Facts:
    running = state == "running"
    return Facts("c", "task-a", state, running, None if running else exit_code, "", False, started_at, None, {})


def problem(code: str, status: int = 409, **members: Any) -> ProblemDocument:
    return ProblemDocument(status, code, "x", members=members)


class Bench:
    """``gone``, ``start`` and ``stands`` may be errors. Reports are sent at once, by hand."""

    def __init__(self, folder: Path) -> None:
        self.journal: Journal = open_journal(folder)
        self.facts: Facts = facts("exited")
        self.gone: Optional[Exception] = None
        self.start: Optional[Exception] = None
        self.stands: Any = True
        self.cards: list[str] = ["GPU-0"]
        self.answers: list[Optional[LinkError]] = []
        self.told: list[tuple[str, str]] = []
        self.started = 0
        self.released = 0
        self.ends: list[tuple[Conclusion, Stage]] = []
        self.again: list[float] = []
        self.now = 1000.0
        parts: Any = SimpleNamespace(
            settings=AgentSettings(report_attempts=1),
            client=SimpleNamespace(update_task=self._update, control_plane_id="cp"),
            identity=SimpleNamespace(node_id="n"),
            driver_of=lambda held: SimpleNamespace(inspect=self._inspect, start=self._start),
            journal=self.journal,
            snapshot=lambda: SimpleNamespace(gpus=[_gpu(uuid) for uuid in self.cards], failures=()),
            reports=SimpleNamespace(submit=lambda name, work: work()),
            timers=SimpleNamespace(after=lambda name, seconds, action: None),
            step=lambda held, step: None,
            masked=lambda held, text: text,
            clock=lambda: self.now,
            boot="boot",
            stop_event=SimpleNamespace(wait=lambda seconds: True),
        )
        parts.write = lambda held, **changes: Parts.write(parts, held, **changes)
        turn: Any = SimpleNamespace(
            parts=parts,
            advance=lambda held: None,
            end=lambda held, conclusion, seen: self.ends.append((conclusion, held.record.stage)) or True,
            again=lambda held, after_s=None: self.again.append(after_s) or False,
            started_mono=lambda held, seen: 900.0,
        )
        mounting: Any = SimpleNamespace(stands=self._stands, release=self._release)
        self.sleeping = Sleeping(turn, mounting)
        record = ClaimRecord(
            KEY, "a", "cp", "token", Stage.SLEEPING, TaskSpec("a"), gpus=(CARD,), container_id="c",
            slept_run=FIRST_RUN, stop=Stop(StopReason.SLEEP, 1.0, Sent.SENT),
        )  # fmt: skip
        self.held = Held(record, told=Status.SLEEPING)
        self.journal.save(record)

    @property
    def on_disk(self) -> ClaimRecord:
        (record,) = self.journal.claims()
        return record

    def _inspect(self, container_id: str) -> Facts:
        if self.gone is not None:
            raise self.gone
        return self.facts

    def _start(self, container_id: str) -> None:
        assert self.on_disk.stage is Stage.STARTING, "the start is on disk before it is asked for"
        if self.start is not None:
            raise self.start
        self.started += 1

    def _stands(self, held: Held) -> bool:
        if isinstance(self.stands, Exception):
            raise self.stands
        return bool(self.stands)

    def _release(self, key: Key) -> None:
        self.released += 1

    def _update(self, task_id: str, update: Any) -> None:
        self.told.append((update.from_status.value, update.status.value))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer


def _gpu(uuid: str) -> Gpu:
    return Gpu(uuid, "nvidia")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.journal.close()


def test_what_ended_by_the_sleep_signal_is_kept_and_told(bench: Bench) -> None:
    bench.held.record = dataclasses.replace(bench.held.record, stage=Stage.RUNNING, slept_run=None)
    bench.held.want = StopReason.SLEEP
    assert bench.sleeping.fall_asleep(bench.held, facts("exited", SECOND_RUN))
    assert (bench.on_disk.stage, bench.on_disk.slept_run) == (Stage.SLEEPING, SECOND_RUN)
    assert (bench.held.want, bench.held.phase) == (None, Phase.SLEEPING)
    assert bench.sleeping.asleep(bench.held) is False
    assert bench.told == [("running", "sleeping")]
    bench.sleeping.asleep(bench.held)
    assert len(bench.told) == 1, "it knows now"


@pytest.mark.parametrize("want", [StopReason.OPERATOR, StopReason.STALE])
def test_an_order_to_end_that_came_meanwhile_is_not_forgotten(bench: Bench, want: StopReason) -> None:
    bench.held.want = want
    bench.sleeping.fall_asleep(bench.held, bench.facts)
    bench.sleeping.asleep(bench.held)
    ((conclusion, stage),) = bench.ends
    assert (conclusion.status, conclusion.exit_code, stage) == (Status.STOPPED, 143, Stage.SLEEPING)


OTHER = problem("state_conflict", task_status="running", attempt=2, claim_token_matches=False)
STORED = problem("state_conflict", task_status="sleeping", attempt=1, claim_token_matches=True)


@pytest.mark.parametrize(
    ("answer", "known"),
    [(None, True), (Refused(STORED), True), (Refused(OTHER), False), (Unavailable("away"), False)],
)
def test_it_is_told_until_the_server_has_it(bench: Bench, answer: Optional[LinkError], known: bool) -> None:
    bench.held.told = None
    bench.answers = [answer]
    bench.sleeping.asleep(bench.held)
    bench.sleeping.asleep(bench.held)
    assert bench.told == [("running", "sleeping")], "not at every look"
    bench.now += 60
    bench.sleeping.asleep(bench.held)
    assert len(bench.told) == (1 if known else 2)
    assert bench.held.reporting is False


def test_waking_writes_the_start_down_and_forgets_the_former_run(bench: Bench) -> None:
    bench.held.wake = True
    assert bench.sleeping.asleep(bench.held) is True
    record = bench.on_disk
    assert (bench.started, record.stage, record.stop, record.slept_run) == (1, Stage.STARTING, None, FIRST_RUN)
    assert (record.asked_mark, record.asked_mono, record.started_mono, record.ready) == ("boot", 1000.0, None, False)
    bench.held.record = dataclasses.replace(record, stage=Stage.RUNNING)
    bench.sleeping.tell(bench.held)
    assert bench.told == [("sleeping", "running")]


def test_it_sleeps_as_long_as_nobody_wants_it_to_wake(bench: Bench) -> None:
    assert bench.sleeping.asleep(bench.held) is False
    assert (bench.started, bench.on_disk.stage, bench.told) == (0, Stage.SLEEPING, [])


STAYS = [
    ("cards", [], "card GPU-0 is not on this node now"),
    ("stands", False, OTHER_SOURCES),
    ("stands", CheckFailed(Reason.START_FAILED, "no place for its volumes"), "no place for its volumes"),
    ("stands", CheckFailed(Reason.ENGINE_UNAVAILABLE, "elsewhere"), "elsewhere"),
    ("start", EngineRefused(500, "port is already allocated"), "port is already allocated"),
    ("start", EngineRefused(500, "nvidia-container-cli: device error"), "nvidia-container-cli: device error"),
]


@pytest.mark.parametrize(("what", "is_so", "text"), STAYS)
def test_what_may_pass_leaves_it_asleep_and_is_said(bench: Bench, what: str, is_so: Any, text: str) -> None:
    setattr(bench, what, is_so)
    bench.held.wake = True
    assert bench.sleeping.asleep(bench.held) is False
    assert (bench.on_disk.stage, bench.held.phase, bench.ends) == (Stage.SLEEPING, Phase.SLEEPING, [])
    assert bench.held.detail == f"cannot be woken: {text}"
    assert bench.again and bench.released, "it is tried again, and holds no volume until then"
    setattr(bench, what, {"cards": ["GPU-0"], "stands": True, "start": None}[what])
    assert bench.sleeping.asleep(bench.held) is True
    assert bench.started == 1


@pytest.mark.parametrize(
    ("what", "is_so", "reason"),
    [
        ("stands", CheckFailed(Reason.VOLUME_REJECTED, "a link"), Reason.VOLUME_REJECTED),
        ("start", EngineRefused(500, "bind source path does not exist"), Reason.VOLUME_REJECTED),
    ],
)
def test_what_the_task_did_wrong_ends_it(bench: Bench, what: str, is_so: Any, reason: Reason) -> None:
    setattr(bench, what, is_so)
    bench.held.wake = True
    bench.sleeping.asleep(bench.held)
    ((conclusion, stage),) = bench.ends
    assert (conclusion.status, conclusion.reason, stage) == (Status.FAILED, reason, Stage.SLEEPING)


def test_a_start_whose_answer_was_lost_is_looked_at(bench: Bench) -> None:
    """Whether it had an effect is told by the engine's time of the start, and by nothing else."""
    bench.held.wake = True
    bench.start = EngineUnavailable("no answer")
    with pytest.raises(EngineUnavailable):
        bench.sleeping.asleep(bench.held)
    assert bench.on_disk.stage is Stage.STARTING
    assert bench.sleeping.did_not_wake(bench.held, facts("exited", SECOND_RUN)) is False, "it ran, and is over"
    assert bench.on_disk.stage is Stage.STARTING
    assert bench.sleeping.did_not_wake(bench.held, facts("exited", FIRST_RUN)) is True
    assert bench.on_disk.stage is Stage.SLEEPING


def test_a_first_start_is_never_taken_for_a_wake(bench: Bench) -> None:
    bench.held.record = dataclasses.replace(bench.held.record, stage=Stage.STARTING, slept_run=None)
    assert bench.sleeping.did_not_wake(bench.held, facts("exited", None)) is False


@pytest.mark.parametrize(("superseded", "ends"), [(False, 0), (True, 1)])
def test_a_container_that_is_gone_is_left_to_reconciliation(bench: Bench, superseded: bool, ends: int) -> None:
    bench.gone = NotThere(404, "no such container")
    bench.held.superseded = superseded
    bench.held.wake = True
    bench.sleeping.asleep(bench.held)
    assert (len(bench.ends), bench.started) == (ends, 0)


def test_one_that_somebody_started_is_to_sleep_again(bench: Bench) -> None:
    bench.facts = facts("running", SECOND_RUN)
    assert bench.sleeping.asleep(bench.held) is True
    assert (bench.on_disk.stage, bench.on_disk.stop) == (Stage.RUNNING, None), "its signal is journalled anew"
    assert bench.held.want is StopReason.SLEEP


def test_a_sleeper_taken_over_from_labels_learns_its_former_start(bench: Bench) -> None:
    bench.held.record = dataclasses.replace(bench.held.record, slept_run=None)
    bench.sleeping.asleep(bench.held)
    assert bench.on_disk.slept_run == FIRST_RUN


@pytest.mark.parametrize(
    ("status", "desired", "gpus", "cards", "wanted"),
    [
        ("sleeping", "run", ["GPU-0"], (CARD,), True),
        ("sleeping", "run", None, (), True),
        ("sleeping", "run", None, (CARD,), False),
        ("sleeping", "run", ["GPU-1"], (CARD,), False),
        ("sleeping", "run", ["GPU-0"], (CARD, AssignedGpu("GPU-1")), False),
        ("sleeping", "sleep", None, (), False),
        ("sleeping", "stop", ["GPU-0"], (CARD,), False),
        ("running", "run", ["GPU-0"], (CARD,), False),
    ],
)
def test_only_on_all_of_its_own_cards(
    status: str, desired: str, gpus: Optional[list[str]], cards: tuple[AssignedGpu, ...], wanted: bool
) -> None:
    assert wakes(Intent("a", "uid-1", 1, status, desired, gpus), cards) is wanted


LETTER = Letter(KEY, "a", "cp", "token", Status.RUNNING, Status.COMPLETED)
ASLEEP = dataclasses.replace(LETTER, from_status=Status.SLEEPING, status=Status.STOPPED)


@pytest.mark.parametrize(
    ("letter", "status", "mine", "delivery"),
    [
        (LETTER, "sleeping", True, Delivery.CATCH_UP),
        (ASLEEP, "running", True, Delivery.CATCH_UP),
        (LETTER, "running", True, Delivery.LATER),
        (ASLEEP, "sleeping", True, Delivery.LATER),
        (LETTER, "sleeping", False, Delivery.SUPERSEDED),
        (ASLEEP, "stopped", True, Delivery.DELIVERED),
    ],
)
def test_a_server_that_missed_a_sleep_or_a_wake_is_told_that_first(
    letter: Letter, status: str, mine: bool, delivery: Delivery
) -> None:
    members = {"task_status": status, "attempt": 1, "node_id": "n", "claim_token_matches": mine}
    assert read_refusal(problem("state_conflict", **members), letter, "n") is delivery


def test_what_is_told_of_falling_asleep_and_waking(bench: Bench) -> None:
    down, up = (move_update("n", bench.held.record, status) for status in (Status.SLEEPING, Status.RUNNING))
    assert (down.from_status, down.status) == (Status.RUNNING, Status.SLEEPING)
    assert (up.from_status, up.status) == (Status.SLEEPING, Status.RUNNING)
    assert is_so_already(STORED, bench.held.record, Status.SLEEPING)
    assert not is_so_already(STORED, bench.held.record, Status.RUNNING)
    assert not is_so_already(OTHER, bench.held.record, Status.RUNNING)
    elsewhere = dataclasses.replace(STORED, control_plane_id="another")
    assert not is_so_already(elsewhere, bench.held.record, Status.SLEEPING)


def test_time_before_the_sleep_counts_and_time_asleep_does_not() -> None:
    """Written with the signal's own record, so that no crash in between gives or takes any."""
    now, armed, written = [130.0], {}, []
    parts: Any = SimpleNamespace(
        boot="boot",
        clock=lambda: now[0],
        wall=lambda: 0.0,
        step=lambda *step: None,
        write=lambda held, **changes: (
            written.append(changes) or setattr(held, "record", dataclasses.replace(held.record, **changes))
        ),
        driver_of=lambda held: SimpleNamespace(signal=lambda container, signal: True),
        timers=SimpleNamespace(at=lambda name, moment, action: armed.update({name[0]: moment})),
    )
    spec = TaskSpec("a", timeout_s=100)
    record = ClaimRecord(
        KEY, "a", "cp", "t", Stage.RUNNING, spec, started_mark="boot", started_mono=100.0, ran_before_s=5
    )
    held = Held(record)
    held.stop(StopReason.SLEEP)
    watch = Watch(parts, lambda held: None)
    watch.end(held, facts("running"))
    assert (written[0]["ran_before_s"], written[0]["stop"].reason) == (35.0, StopReason.SLEEP)
    watch.end(held, facts("running"))
    assert held.record.ran_before_s == 35.0, "once"
    held.record = dataclasses.replace(held.record, stop=None, started_mono=5000.0)
    watch.arm(held, facts("running"))
    assert armed["timeout"] == 5000.0 + 65.0
