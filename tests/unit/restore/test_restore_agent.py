"""What an agent makes of a server that has lost time, and what it tells it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.agent.drivers.driver import EngineFacts
from runtime.agent.link.errors import Refused
from runtime.agent.link.seen import KEPT, SeenRevisions, read_seen
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.classify import StopReason
from runtime.agent.tasks.executor import Executor
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.intents import Intents
from runtime.agent.tasks.journal import Journal, open_journal
from runtime.agent.tasks.listing import Listing
from runtime.agent.tasks.orphans import of_claim, of_letter
from runtime.agent.tasks.parts import Claims
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.heartbeat import HeartbeatAnswer, Intent, LostRevisions
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.states import Driver, Status
from runtime.protocol.tasks import AssignedGpu, Task, TaskSpec
from tests.unit.agent_link.agent_stubs import heartbeats

KEY = Key("u", 2)
SPEC = TaskSpec(name="t", image="i:1", env={"TOKEN": "secret-value-1"})
CARDS = (AssignedGpu("GPU-1"),)
LOST = LostRevisions(40)


def record(stage: Stage = Stage.RUNNING, key: Key = KEY) -> ClaimRecord:
    return ClaimRecord(key, "t", "cp", "token", stage, SPEC, gpus=CARDS, container_id="c")


def letter(outcome: str | None = "stored", **members: Any) -> Letter:
    at = None if outcome is None else 1000.0
    told = Letter(
        KEY, "t", "cp", "token", Status.RUNNING, Status.FAILED, "exited", 3, None, "tail", "then", "c", at, outcome
    )
    return dataclasses.replace(told, spec=SPEC, gpus=CARDS, **members)


def answer(*intents: Intent, lost: LostRevisions | None = None, revision: int = 50) -> HeartbeatAnswer:
    return HeartbeatAnswer(True, "cp", revision, "now", intents=list(intents), lost=lost)


def intent(status: str, desired: str = "run", attempt: int = 2) -> Intent:
    return Intent("t", "u", attempt, status, desired, ["GPU-1"])


# What is seen


def test_the_highest_revision_of_each_control_plane_is_remembered() -> None:
    seen = SeenRevisions({"old": 9})
    for name, revision in (("new", 1), ("old", 7), ("old", 12), ("new", 3)):
        seen.note(name, revision)
    assert (seen.highest("old"), seen.highest("new"), seen.highest("other"), seen.highest(None)) == (12, 3, None, None)
    for number in range(KEPT):
        seen.note(f"cp-{number}", number)
    assert seen.highest("old") is None and len(seen.all()) == KEPT


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({}, {}),
        ({"control_plane_id": "a", "seen_revision": 4}, {"a": 4}),
        ({"control_plane_id": "a", "seen_revision": 4, "seen_revisions": {"a": 6, "b": 2}}, {"a": 6, "b": 2}),
        ({"control_plane_id": None, "seen_revision": 4, "seen_revisions": {"b": "x", "c": True, "d": 1}}, {"d": 1}),
        ({"control_plane_id": "a", "seen_revision": None, "seen_revisions": [1]}, {}),
    ],
)
def test_a_status_file_of_any_release_is_read(stored: dict[str, Any], expected: dict[str, int]) -> None:
    assert read_seen(stored) == expected


class Script:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.beats: list[Any] = []

    def heartbeat(self, beat: Any) -> HeartbeatAnswer:
        self.beats.append(beat)
        step = self.answers.pop(0)
        if callable(step):
            step = step()
        return step  # type: ignore[no-any-return]


def run(script: Script, **options: Any) -> list[HeartbeatAnswer]:
    told: list[HeartbeatAnswer] = []
    heart = heartbeats(script, on_answer=told.append, **options)
    for _ in range(len(script.answers)):
        heart.loop.run_once()
    return told


def test_a_lower_revision_is_noticed_kept_and_over_when_it_is_above_again() -> None:
    told = run(Script(*(answer(revision=number) for number in (90, 40, 41, 39, 1000))))
    assert [one.lost for one in told] == [None, LostRevisions(40), LostRevisions(40), LostRevisions(39), None]


def test_a_server_that_says_it_itself_is_believed() -> None:
    lost = LostRevisions(3, 1000)
    assert [one.lost for one in run(Script(answer(revision=90, lost=lost), answer(revision=90)))] == [lost, None]


def test_it_is_noticed_also_by_what_an_earlier_run_had_seen() -> None:
    assert run(Script(answer(revision=40)), seen=("cp", 41))[0].lost == LostRevisions(40)


def test_it_is_noticed_when_another_control_plane_answered_in_between() -> None:
    """A server came up with an empty database, and then the backup was put in its place."""
    other = HeartbeatAnswer(True, "fresh", 1, "now")
    script = Script(answer(revision=90), other, answer(revision=40), answer(revision=40))
    assert [one.lost for one in run(script)] == [None, None, LostRevisions(40), LostRevisions(40)]
    assert [(beat.seen_control_plane_id, beat.seen_revision) for beat in script.beats] == [
        (None, None), ("cp", 90), ("fresh", 1), ("cp", 90)
    ]  # fmt: skip


def test_what_is_answered_beside_a_beat_is_no_sign() -> None:
    """A claim is stored while the beat is on its way: its answer shows more than the beat's own."""
    seen = SeenRevisions()

    def meanwhile() -> HeartbeatAnswer:
        seen.note("cp", 52)
        return answer(revision=51)

    script = Script(answer(revision=50), meanwhile, answer(revision=52))
    assert [one.lost for one in run(script, revisions=seen)] == [None, None, None]
    assert script.beats[2].seen_revision == 52


# What it is told


@pytest.mark.parametrize(
    ("stage", "shown", "secret", "superseded", "state"),
    [
        (Stage.CLAIMING, None, False, False, None),
        (Stage.CLAIMED, None, False, False, "claimed"),
        (Stage.CLAIMED, None, True, False, "running"),
        (Stage.CREATED, None, False, False, "running"),
        (Stage.RUNNING, None, False, False, "running"),
        (Stage.RUNNING, "scheduled", False, False, "running"),
        (Stage.RUNNING, "sleeping", False, False, "running"),
        (Stage.RUNNING, "running", False, False, None),
        (Stage.SLEEPING, None, False, False, "sleeping"),
        (Stage.SLEEPING, "running", False, False, "sleeping"),
        (Stage.SLEEPING, "sleeping", False, False, None),
        (Stage.RUNNING, None, False, True, "superseded"),
        (Stage.RUNNING, "running", False, True, "superseded"),
    ],
)
def test_a_claim_is_told_where_the_server_does_not_show_it(
    stage: Stage, shown: str | None, secret: bool, superseded: bool, state: str | None
) -> None:
    held = Held(record(stage), secret_spec=SPEC if secret else None, superseded=superseded)
    entry = of_claim(held, None, intent(shown) if shown else None)
    assert (entry.state if entry else None) == state
    if entry is not None:
        assert (entry.uid, entry.attempt, entry.claim_token) == ("u", 2, "token")
        assert entry.spec is not None and "env" not in entry.spec
        assert entry.gpus == (["GPU-1"] if state == "running" else []), "who sleeps or is over holds no card"


@pytest.mark.parametrize(
    ("outcome", "over", "state"),
    [
        (None, None, "concluded"),
        ("stored", None, "concluded"),
        ("delivered", None, "concluded"),
        ("deleted", None, "concluded"),
        ("superseded", None, "superseded"),
        ("ended:failed", None, "superseded"),
        (None, "superseded", "superseded"),
        (None, "deleted", "concluded"),
    ],
)
def test_a_conclusion_is_told_with_what_became_of_it(outcome: str | None, over: str | None, state: str) -> None:
    entry = of_letter(letter(outcome), over)
    assert (entry.state, entry.exit_code, entry.status, entry.from_status) == (state, 3, "failed", "running")
    assert "secret-value-1" not in repr(entry) and entry.gpus == []


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = open_journal(tmp_path)
    yield made
    made.close()


def test_the_outbox_knows_what_was_told_above_a_revision(journal: Journal) -> None:
    for number, revision in enumerate((10, 60, None)):
        key = Key(f"u-{number}", 1)
        claim, told = record(key=key), dataclasses.replace(letter(None), key=key)
        journal.conclude(claim, told)
        journal.delivered(claim, "stored", revision)
        journal.forget(key)
    assert sorted(one.key.uid for one in journal.told_above(40, 10)) == ["u-1", "u-2"]
    assert len(journal.told_above(5, 2)) == 2
    (one,) = [one for one in journal.told_above(40, 10) if one.key.uid == "u-1"]
    assert (one.spec, one.gpus, one.driver) == (TaskSpec(name="t", image="i:1"), CARDS, Driver.DOCKER)


# What it does


class Rig:
    """An executor without an engine, over a journal; ``puts`` are the changes that it asked the server for."""

    def __init__(self, journal: Journal, offered: Task | None = None) -> None:
        self.puts: list[Any] = []
        self.client: Any = SimpleNamespace(
            control_plane_id="cp",
            seen=SeenRevisions(),
            behind=False,
            scheduled_tasks=lambda limit: [offered] if offered else [],
            update_task=lambda task_id, update: self.puts.append(update),
        )
        identity: Any = SimpleNamespace(node_id="n", instance_id="i", booted=False, former_node_ids=[])
        driver: Any = SimpleNamespace(images=None)
        self.executor = Executor(AgentSettings(), self.client, {Driver.DOCKER: driver}, journal, identity, lambda: None)  # type: ignore[arg-type, return-value]
        for engine in self.executor._parts.drivers.values():
            engine.last._error = None

    def take(self) -> list[Key]:
        """One look for tasks; the claims that were made."""
        self.executor.wake()
        self.executor._taking.take()
        return [held.key for held in self.executor._claims.all()]


OFFERED = Task("t", "u", Status.SCHEDULED, 2, node_id="n", spec=TaskSpec(name="t", image="i:1"))


def delivered(journal: Journal, outcome: str) -> None:
    journal.conclude(record(), letter(None))
    journal.delivered(record(), outcome, 60)
    journal.forget(KEY)


def test_an_attempt_that_ended_here_is_never_run_again(journal: Journal) -> None:
    delivered(journal, "stored")
    rig = Rig(journal, OFFERED)
    assert rig.take() == []
    assert [(put.claim_token, put.from_status, put.status) for put in rig.puts] == [
        ("token", Status.SCHEDULED, Status.RUNNING)
    ], "its claim is stored again, so that its end can be told"


def test_an_attempt_that_was_given_up_here_is_not_claimed_again(journal: Journal) -> None:
    delivered(journal, "superseded")
    rig = Rig(journal, OFFERED)
    assert (rig.take(), rig.puts) == ([], [])


def test_nothing_is_taken_from_a_server_that_was_put_back(journal: Journal) -> None:
    rig = Rig(journal, OFFERED)
    rig.executor._taking._word.heard("cp", 50, LOST)
    assert rig.take() == []
    rig.executor._taking._word.heard("cp", 1000)
    assert rig.take() == [KEY]


@pytest.mark.parametrize(("count", "told_from", "truncated"), [(2, 40, False), (3, None, True)])
def test_an_agent_says_that_it_has_told_all_only_when_it_has(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, count: int, told_from: int | None, truncated: bool
) -> None:
    monkeypatch.setattr("runtime.agent.tasks.orphans.ORPHANS_CAP", 2)
    for number in range(count):
        key = Key(f"u-{number}", 1)
        journal.conclude(record(key=key), dataclasses.replace(letter(None), key=key))
        journal.delivered(record(key=key), "stored", 60)
        journal.forget(key)
    rig = Rig(journal)
    rig.executor._orphans._word.heard("cp", 50, LOST)
    for engine in rig.executor._parts.drivers.values():
        engine.last.good(Listing(engine._clock(), (), True), EngineFacts("e", "20.10"))
    told = rig.executor.orphans()
    assert told.entries is not None and len(told.entries) == 2
    assert (told.told_from, told.truncated) == (told_from, truncated)


class Way:
    def __init__(self) -> None:
        self.advanced: list[Held] = []
        self.abandoned: list[Held] = []
        self.asked = threading.Event()

    def advance(self, held: Held) -> None:
        self.advanced.append(held)

    def abandon(self, held: Held, why: str) -> None:
        self.abandoned.append(held)


def intents(journal: Journal, word: ServerWord, now: float = 2000.0) -> tuple[Intents, Claims, Way]:
    claims, way = Claims(), Way()
    parts: Any = SimpleNamespace(
        journal=journal,
        clock=lambda: now,
        wall=lambda: now,
        client=SimpleNamespace(control_plane_id="cp"),
        reports=SimpleNamespace(submit=lambda name, work: work()),
    )
    return Intents(parts, claims, way, word), claims, way  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "status", "told"),
    [
        ("stored", "running", True),
        ("delivered", "sleeping", True),
        ("deleted", "running", True),
        ("superseded", "running", False),
        ("ended:failed", "running", False),
        ("stored", "scheduled", False),
    ],
)
def test_an_end_is_told_again_where_it_was_the_tasks_end(
    journal: Journal, outcome: str, status: str, told: bool
) -> None:
    delivered(journal, outcome)
    looker, claims, _ = intents(journal, ServerWord(), 1e12)
    looker.on_answer(answer(intent(status)))
    assert [held.record.stage for held in claims.all()] == ([Stage.CONCLUDED] if told else [])
    if told:
        again = journal.letter(KEY)
        assert again is not None and (again.exit_code, again.log_tail, again.delivered_at) == (3, "tail", None)


def test_an_answer_that_was_under_way_tells_nothing_again_unless_the_server_says_that_it_lost_time(
    journal: Journal,
) -> None:
    delivered(journal, "stored")
    at = journal.letter(KEY).delivered_at or 0.0  # type: ignore[union-attr]
    looker, claims, _ = intents(journal, ServerWord(), at + 1)
    looker.on_answer(answer(intent("running")))
    assert claims.all() == []
    looker.on_answer(answer(intent("running"), lost=LOST))
    assert [held.key for held in claims.all()] == [KEY]


@pytest.mark.parametrize(
    ("stage", "shown", "follows"),
    [
        (Stage.SLEEPING, intent("sleeping", "run"), False),
        (Stage.RUNNING, intent("running", "sleep"), False),
        (Stage.RUNNING, intent("running", "stop"), True),
    ],
)
def test_old_wishes_are_not_followed_but_for_an_end(
    journal: Journal, stage: Stage, shown: Intent, follows: bool
) -> None:
    """What the database holds may be long over: then the cards of a sleeper are another task's by now."""
    for lost in (LOST, None):
        looker, claims, _ = intents(journal, ServerWord())
        held = Held(record(stage))
        claims.add(held)
        looker.on_answer(answer(shown, lost=lost))
        done = held.wake or held.want is not None
        assert done is (follows or lost is None), lost
        assert held.want in (None, StopReason.SLEEP, StopReason.OPERATOR)


def test_what_is_not_accounted_for_is_not_owned_up_to_yet(journal: Journal) -> None:
    looker, _, _ = intents(journal, ServerWord())
    looker.on_answer(answer(intent("running"), lost=LOST))
    assert looker.unaccounted() == []
    looker.on_answer(answer(intent("running")))
    assert [key for key, _, _ in looker.unaccounted()] == [KEY]


def test_unknown_is_not_deleted_while_time_is_lost() -> None:
    word = ServerWord()
    problem = ProblemDocument(404, "task_not_found", "why", control_plane_id="cp")
    for lost, proven in ((LOST, False), (None, True)):
        found = False
        for number in range(5):
            word.heard("cp", 100, lost)
            found = word.says_deleted(KEY, "cp", problem, 10.0 * number + (1000 if lost is None else 0))
        assert found is proven


@pytest.mark.parametrize("behind", [True, False])
def test_a_claim_that_has_not_started_is_not_given_up_by_the_word_of_a_server_that_lost_time(
    journal: Journal, behind: bool
) -> None:
    rig = Rig(journal)
    rig.client.behind = behind

    def unknown(task_id: str, token: str) -> Task:
        raise Refused(ProblemDocument(404, "task_not_found", "why", control_plane_id="cp"))

    rig.client.task = unknown
    held = Held(record(Stage.CLAIMED))
    rig.executor._claims.add(held)
    assert rig.executor._way._claiming.full_spec(held) is None
    assert held.superseded is not behind
