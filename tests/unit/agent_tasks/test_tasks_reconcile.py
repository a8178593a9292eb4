"""The table of reconciliation, claims, reports, and the server's word about a task."""

from __future__ import annotations

import pytest

from runtime.agent.tasks import claim, report
from runtime.agent.tasks.claim import ClaimAnswer
from runtime.agent.tasks.listing import Trust
from runtime.agent.tasks.reconcile import Box, Decision, Server, Situation, decide, needs_server
from runtime.agent.tasks.records import Key, Letter, Stage
from runtime.agent.tasks.report import Delivery
from runtime.agent.tasks.zombies import ServerWord, read_task
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.states import Status
from runtime.protocol.tasks import Task

OURS, ENDED, MOVED, DELETED, UNKNOWN = Server.OURS, Server.ENDED, Server.MOVED, Server.DELETED, Server.UNKNOWN

TABLE = [
    (Box.RUNNING, Stage.RUNNING, OURS, Decision.ADOPT),
    (Box.RUNNING, Stage.RUNNING, UNKNOWN, Decision.ADOPT),
    (Box.RUNNING, Stage.STARTING, UNKNOWN, Decision.ADOPT),
    (Box.RUNNING, Stage.RUNNING, ENDED, Decision.STOP_STALE),
    (Box.RUNNING, Stage.RUNNING, MOVED, Decision.STOP_STALE),
    (Box.RUNNING, Stage.RUNNING, DELETED, Decision.STOP_STALE),
    (Box.ENDED, Stage.RUNNING, OURS, Decision.CONCLUDE),
    (Box.ENDED, Stage.RUNNING, UNKNOWN, Decision.CONCLUDE),
    (Box.GOING, Stage.RUNNING, OURS, Decision.KEEP),
    (Box.CREATED, Stage.CREATED, OURS, Decision.START),
    (Box.CREATED, Stage.STARTING, OURS, Decision.START),
    (Box.NONE, Stage.CLAIMING, UNKNOWN, Decision.ASK_AGAIN),
    (Box.NONE, Stage.CLAIMED, OURS, Decision.RESUME),
    (Box.NONE, Stage.CREATED, OURS, Decision.RESUME),
    (Box.NONE, Stage.STARTING, OURS, Decision.LOST),
    (Box.NONE, Stage.RUNNING, OURS, Decision.LOST),
    (Box.NONE, Stage.RUNNING, UNKNOWN, Decision.KEEP),
    (Box.NONE, Stage.RUNNING, MOVED, Decision.STOP_STALE),
    (Box.ENDED, Stage.CONCLUDED, OURS, Decision.REPORT),
    (Box.NONE, Stage.CONCLUDED, ENDED, Decision.REPORT),
    (Box.ENDED, Stage.DONE, ENDED, Decision.REMOVE),
    (Box.NONE, Stage.DONE, ENDED, Decision.FORGET),
    (Box.RUNNING, None, OURS, Decision.RECLAIM),
    (Box.ENDED, None, OURS, Decision.RECLAIM),
    (Box.RUNNING, None, UNKNOWN, Decision.RECLAIM),
    (Box.ENDED, None, UNKNOWN, Decision.KEEP),
    (Box.RUNNING, None, MOVED, Decision.STOP_STALE),
    (Box.ENDED, None, ENDED, Decision.REMOVE),
]


@pytest.mark.parametrize(("box", "stage", "server", "decision"), TABLE)
def test_decision(box: Box, stage: Stage | None, server: Server, decision: Decision) -> None:
    assert decide(Situation(box, stage, server)) is decision


def test_foreign_containers_are_never_judged() -> None:
    for server in Server:
        assert decide(Situation(Box.RUNNING, None, server, own=False)) is Decision.FOREIGN


def test_a_young_container_is_kept() -> None:
    assert decide(Situation(Box.RUNNING, None, ENDED, settled=False)) is Decision.KEEP


def test_an_undelivered_outcome_outlives_every_word_of_the_server() -> None:
    for server in Server:
        assert decide(Situation(Box.ENDED, Stage.CONCLUDED, server)) is Decision.REPORT


def test_the_server_is_asked_only_when_it_matters() -> None:
    assert needs_server(Situation(Box.NONE, Stage.RUNNING))
    assert needs_server(Situation(Box.RUNNING, None))
    assert not needs_server(Situation(Box.ENDED, Stage.CONCLUDED))
    assert not needs_server(Situation(Box.RUNNING, None, own=False))


def test_an_empty_or_another_engine_is_believed_at_the_second_pass() -> None:
    trust = Trust("engine-1")
    assert trust.judge("engine-1", listed=3, known=3)
    assert not trust.judge("engine-1", listed=0, known=3)
    assert trust.judge("engine-1", listed=3, known=3)
    assert not trust.judge("engine-1", listed=0, known=3)
    assert trust.judge("engine-1", listed=0, known=3)
    assert not trust.judge("engine-2", listed=1, known=1)
    assert trust.judge("engine-2", listed=1, known=1)
    assert trust.judge("engine-2", listed=1, known=1)


def conflict(**members: object) -> ProblemDocument:
    return ProblemDocument(409, "state_conflict", "x", members=dict(members))


@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        (conflict(task_status="running", claim_token_matches=True), ClaimAnswer.MINE),
        (conflict(task_status="running", claim_token_matches=False), ClaimAnswer.LOST),
        (conflict(task_status="cancelled", claim_token_matches=False), ClaimAnswer.LOST),
        (conflict(task_status="stopped", claim_token_matches=True), ClaimAnswer.LOST),
        (ProblemDocument(404, "task_not_found", "x"), ClaimAnswer.LOST),
        (ProblemDocument(404, "task_not_found", "x", control_plane_id="cp"), ClaimAnswer.LOST),
        (ProblemDocument(404, "task_not_found", "x", control_plane_id="fresh"), ClaimAnswer.LATER),
        (ProblemDocument(401, "bad_api_key", "x"), ClaimAnswer.LATER),
        (ProblemDocument(403, "instance_mismatch", "x"), ClaimAnswer.LATER),
    ],
)
def test_refused_claim(problem: ProblemDocument, answer: ClaimAnswer) -> None:
    assert claim.read_refusal(problem, "cp") is answer


LETTER = Letter(Key("u", 2), "a", "cp", "token", Status.RUNNING, Status.COMPLETED, log_tail="x")


@pytest.mark.parametrize(
    ("problem", "delivery"),
    [
        (conflict(task_status="completed", attempt=2, node_id="n"), Delivery.DELIVERED),
        (conflict(task_status="cancelled", attempt=2, node_id="n"), Delivery.DELIVERED),
        (conflict(task_status="pending", attempt=2, node_id=None), Delivery.DELIVERED),
        (conflict(task_status="running", attempt=3, node_id="n"), Delivery.SUPERSEDED),
        (conflict(task_status="running", attempt=2, node_id="other"), Delivery.SUPERSEDED),
        (conflict(task_status="running", attempt=2, node_id="n", claim_token_matches=False), Delivery.SUPERSEDED),
        (conflict(task_status="running", attempt=2, node_id="n", claim_token_matches=True), Delivery.LATER),
        (conflict(), Delivery.LATER),
        (ProblemDocument(409, "state_conflict", "x", "fresh", {"task_status": "failed", "attempt": 2}), Delivery.LATER),
        (ProblemDocument(413, "body_too_large", "x"), Delivery.SHORTER),
        (ProblemDocument(401, "bad_api_key", "x"), Delivery.LATER),
        (ProblemDocument(404, "task_not_found", "x"), Delivery.LATER),
    ],
)
def test_refused_report(problem: ProblemDocument, delivery: Delivery) -> None:
    assert report.read_refusal(problem, LETTER, "n") is delivery


KEY = Key("u", 2)


@pytest.mark.parametrize(
    ("task", "server"),
    [
        (Task("a", "u", Status.RUNNING, 2, node_id="n"), OURS),
        (Task("a", "u", Status.SLEEPING, 2, node_id="n"), OURS),
        (Task("a", "u", Status.RUNNING, 2, node_id="m"), MOVED),
        (Task("a", "u", Status.RUNNING, 3, node_id="n"), MOVED),
        (Task("a", "u", Status.FAILED, 2, node_id="n"), ENDED),
        (Task("a", "u", Status.PENDING, 2), UNKNOWN),
        (Task("a", "u", Status.RUNNING, 1, node_id="n"), UNKNOWN),
        (Task("a", "other", Status.FAILED, 9, node_id="n"), UNKNOWN),
    ],
)
def test_the_servers_word(task: Task, server: Server) -> None:
    assert read_task(task, KEY, "n") is server


def test_a_task_under_a_name_that_was_given_up_has_not_moved() -> None:
    task = Task("a", "u", Status.RUNNING, 2, node_id="old")
    assert read_task(task, KEY, "n") is MOVED
    assert read_task(task, KEY, "n", ["old"]) is UNKNOWN
    assert read_task(Task("a", "u", Status.RUNNING, 3, node_id="old"), KEY, "n", ["old"]) is MOVED


NOT_FOUND = ProblemDocument(404, "task_not_found", "x", control_plane_id="cp")


def test_deleted_takes_three_proofs_with_beats_between() -> None:
    word = ServerWord()
    word.heard("cp", 10)
    said = []
    for second in (0, 5, 10, 15):
        said.append(word.says_deleted(KEY, "cp", NOT_FOUND, float(second)))
        word.heard("cp", 10)
    assert said == [False, False, True, True]


def test_not_found_without_a_beat_between_or_too_soon_proves_nothing() -> None:
    word = ServerWord()
    word.heard("cp", 10)
    assert not any(word.says_deleted(KEY, "cp", NOT_FOUND, n * 6.0) for n in range(5))
    word.heard("cp", 10)
    for second in range(4):
        word.heard("cp", 10)
        assert not word.says_deleted(KEY, "cp", NOT_FOUND, second * 0.5)


def test_a_restored_or_another_database_proves_nothing() -> None:
    word = ServerWord()
    word.heard("cp", 10)
    for second in range(5):
        word.heard("cp", 9)
        assert not word.says_deleted(KEY, "cp", NOT_FOUND, second * 6.0)
    for second in range(5, 10):
        word.heard("cp-new", 50)
        fresh = ProblemDocument(404, "task_not_found", "x", control_plane_id="cp-new")
        assert not word.says_deleted(KEY, "cp", fresh, second * 6.0)


def test_a_task_that_was_found_again_starts_anew() -> None:
    word = ServerWord()
    for second in (0, 6):
        word.heard("cp", 10)
        word.says_deleted(KEY, "cp", NOT_FOUND, float(second))
    word.found(KEY)
    word.heard("cp", 10)
    assert not word.says_deleted(KEY, "cp", NOT_FOUND, 12.0)
