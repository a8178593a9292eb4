"""Containers of this node that no claim explains: when they go, when they are taken over, when they stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.drivers.driver import EngineFacts, Seen
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.tasks.engines import Engine
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.journal import Journal, open_journal
from runtime.agent.tasks.listing import Ages
from runtime.agent.tasks.parts import Claims
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage
from runtime.agent.tasks.rounds import QUESTIONS_A_BEAT, Rounds
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.states import Driver, Status
from runtime.protocol.tasks import Task, TaskSpec
from tests.unit.agent_tasks.test_tasks_rounds import box

NOT_FOUND = Refused(ProblemDocument(404, "task_not_found", "x", control_plane_id="cp"))


class World:
    """An engine with containers, a server that answers about tasks, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.boxes: list[Seen] = []
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.now, self.wall = 1000.0, 5000.0
        self.journal: Journal = open_journal(folder)
        self.claims = Claims()
        self.abandoned: list[str] = []
        self.moved: list[str] = []
        self.word = ServerWord()
        self.on_list: Callable[[], None] = lambda: None
        docker: Any = SimpleNamespace(
            list_own=self._list, engine=lambda: EngineFacts("e", "20.10"), wall=lambda: self.wall
        )
        self.engine = Engine(Driver.DOCKER, docker, self.journal, 1e9, clock=lambda: self.now)
        parts: Any = SimpleNamespace(
            client=SimpleNamespace(task=self._task, control_plane_id="cp"),
            drivers={Driver.DOCKER: self.engine},
            journal=self.journal,
            identity=SimpleNamespace(node_id="n", instance_id="old", booted=False, former_node_ids=[]),
            settings=SimpleNamespace(outbox_keep_days=30),
            clock=lambda: self.now,
            wall=lambda: self.wall,
            proven=True,
        )
        way: Any = SimpleNamespace(
            sweep=list,
            advance=lambda held: self.moved.append(held.record.task_id),
            abandon=lambda held, why: self.abandoned.append(held.record.task_id),
        )
        intents: Any = SimpleNamespace(named=lambda key: False, unaccounted=list)
        self.rounds = Rounds(parts, self.claims, way, intents, self.word)

    def _list(self) -> list[Seen]:
        self.on_list()
        return list(self.boxes)

    def _task(self, task_id: str, token: Any) -> Any:
        self.asked.append(task_id)
        answer = self.answers[task_id]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def beat(self, revision: int = 10) -> None:
        self.word.heard("cp", revision)
        self.rounds.judge_unclaimed()

    def poll(self) -> None:
        self.rounds.poll(self.engine)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    @property
    def held(self) -> dict[str, Stage]:
        return {held.record.task_id: held.record.stage for held in self.claims.all()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def terminal(number: int) -> Task:
    return Task(f"t{number}", f"u{number}", Status.FAILED, 1, node_id="n")


def young(number: int, state: str, world: World) -> Seen:
    return dataclasses.replace(box(number, state), created_at=world.wall)


@pytest.mark.parametrize(
    ("state", "abandoned", "stage"), [("running", ["t1"], Stage.STARTING), ("exited", [], Stage.DONE)]
)
def test_what_the_server_says_is_over_goes_after_its_first_minute(
    world: World, state: str, abandoned: list[str], stage: Stage
) -> None:
    world.boxes = [young(1, state, world)]
    world.rounds._parts.identity.instance_id = "another"  # else what runs is taken over at once
    world.answers["t1"] = terminal(1)
    for _ in range(6):
        world.poll()
        world.beat()
        assert world.held == {}
        world.later(9)
    world.later(60)
    world.poll()
    world.beat()
    assert (world.abandoned, world.held) == (abandoned, {"t1": stage})


def test_a_clock_that_was_set_makes_no_container_older(world: World) -> None:
    world.boxes = [young(1, "exited", world)]
    world.answers["t1"] = terminal(1)
    world.poll()
    world.wall += 86400
    world.beat()
    assert world.held == {}
    world.later(61)
    world.poll()
    world.beat()
    assert world.held == {"t1": Stage.DONE}


DOUBT = [
    Unavailable("away"),
    Refused(ProblemDocument(403, "instance_mismatch", "x")),
    Task("t1", "u1", Status.PENDING, 1),
    Task("t1", "other", Status.FAILED, 9),
]


@pytest.mark.parametrize("answer", DOUBT)
def test_error_and_doubt_keep_it(world: World, answer: Any) -> None:
    world.boxes = [box(1, "exited")]
    world.answers["t1"] = answer
    for _ in range(30):
        world.poll()
        world.beat()
        world.later(30)
    assert world.asked and world.held == {}


def test_a_deleted_tasks_container_goes_after_three_proofs_with_beats_between(world: World) -> None:
    """It stayed for ever: only a claim's own questions were counted."""
    world.boxes = [box(1, "exited")]
    world.answers["t1"] = NOT_FOUND
    world.poll()
    world.later(61)
    held = []
    for _ in range(3):
        world.poll()
        world.beat()
        held.append(dict(world.held))
        world.later(6)
    assert held == [{}, {}, {"t1": Stage.DONE}]


def test_a_database_that_was_put_back_deletes_nothing(world: World) -> None:
    world.boxes = [box(1, "exited")]
    world.answers["t1"] = NOT_FOUND
    world.poll()
    world.later(61)
    world.beat(revision=100)
    for _ in range(10):
        world.poll()
        world.beat(revision=99)
        world.later(6)
    assert world.held == {}


@pytest.mark.case("FC-006")
@pytest.mark.parametrize(("label", "value"), [("node", "m"), ("control-plane", "another")])
def test_another_nodes_container_is_not_even_asked_about(world: World, label: str, value: str) -> None:
    """A second agent on the engine took the first one's containers for orphans of its own."""
    other = box(1, "exited")
    world.boxes = [dataclasses.replace(other, labels={**other.labels, f"heterofleet.{label}": value})]
    world.answers["t1"] = terminal(1)
    for _ in range(5):
        world.rounds.reconcile()
        world.beat()
        world.later(70)
    assert (world.asked, world.held, world.abandoned) == ([], {}, [])


def test_what_has_told_its_end_is_not_taken_for_lost(world: World) -> None:
    """A container that was still there got a second end, over the true one."""
    world.boxes = [box(1, "running")]
    record = ClaimRecord(Key("u1", 1), "t1", "cp", "c", Stage.RUNNING, TaskSpec(name="t1"))
    world.journal.conclude(record, Letter(record.key, "t1", "cp", "c", Status.RUNNING, Status.COMPLETED, "exited", 0))
    world.journal.delivered(record, "stored")
    world.journal.forget(record.key)
    world.answers["t1"] = Task("t1", "u1", Status.RUNNING, 1, node_id="n")
    for _ in range(3):
        world.rounds.reconcile()
        world.beat()
        world.later(70)
    assert world.held == {}
    world.answers["t1"] = terminal(1)
    world.later(70)
    world.poll()
    world.beat()
    assert world.abandoned == ["t1"]


def test_a_claim_that_was_over_while_the_list_was_made_is_over(world: World) -> None:
    """Its container was in the list, its claim was not held any more: it was taken over as if the journal were lost."""
    world.boxes = [box(1, "running")]
    record = ClaimRecord(Key("u1", 1), "t1", "cp", "c", Stage.DONE, TaskSpec(name="t1"), container_id=box(1).id)
    for look in (world.rounds.reconcile, world.poll):
        world.claims.add(Held(record))
        world.on_list = lambda: world.claims.drop(record.key)
        look()
        world.on_list = lambda: None
        world.beat()
        assert (world.held, world.asked) == ({}, [])


def test_the_server_is_asked_a_few_questions_a_beat_and_about_each_once_a_minute(world: World) -> None:
    world.boxes = [box(number, "exited") for number in range(3 * QUESTIONS_A_BEAT)]
    world.answers = {f"t{number}": Task(f"t{number}", "other", Status.FAILED, 1) for number in range(len(world.boxes))}
    world.poll()
    counts = []
    for _ in range(6):
        world.later(5)
        before = len(world.asked)
        world.beat()
        counts.append(len(world.asked) - before)
    assert counts == [QUESTIONS_A_BEAT] * 3 + [0] * 3
    world.later(60)
    world.beat()
    assert len(world.asked) == 4 * QUESTIONS_A_BEAT


def test_what_runs_is_taken_over_before_the_server_was_ever_heard(world: World) -> None:
    """After a start of the agent with a lost journal and no server: only this very instance's, whatever the plane."""
    world.rounds._parts.client.control_plane_id = None
    labelled = {**box(1).labels, "heterofleet.deadline": "1970-01-01T01:23:30Z"}
    others = {**box(2).labels, "heterofleet.instance": "another"}
    world.boxes = [
        dataclasses.replace(box(1), labels=labelled, created_at=5000.0),
        dataclasses.replace(box(2), labels=others),
    ]
    world.rounds.reconcile()
    assert world.asked == []
    (held,) = world.claims.all()
    assert (held.record.task_id, held.record.stage, held.record.spec.timeout_s) == ("t1", Stage.STARTING, 10.0)


def test_a_container_is_not_young_for_hours_because_the_clock_was_set_back() -> None:
    """Made in what is the future now: it stayed "younger than a minute" for two hours, and its card was kept."""
    now = [0.0]
    ages = Ages(lambda: now[0], lambda: 10_000.0 + now[0])
    box = Seen("c" * 64, "task-a", "exited", {}, created_at=17_200.0)
    ages.note("docker", [box])
    assert ages.of("docker", box) == 0.0
    now[0] = 61.0
    assert ages.of("docker", box) == 61.0
