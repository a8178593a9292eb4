"""Claims and ends over real HTTP on each database: one winner, one end, nothing changed by what comes late."""

from __future__ import annotations

import http.client
import json
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa

from runtime.server.store.tables import tasks
from tests.integration.server_tasks.conftest import KEY, Plane

PARALLEL = 200


def columns(plane: Plane, task_id: str) -> dict[str, Any]:
    (row,) = plane.rows(sa.select(tasks).where(tasks.c.id == task_id))
    return dict(row)


def test_two_hundred_claims_have_one_winner(any_plane: Plane) -> None:
    node = any_plane.node()
    any_plane.create("t1")
    attempt = any_plane.scheduled(node, "t1")
    start = Barrier(PARALLEL)

    def claim(_: int) -> tuple[str, tuple[int, Any]]:
        start.wait(30)
        return node.claim("t1", attempt)

    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = list(pool.map(claim, range(PARALLEL)))
    assert Counter(status for _, (status, _) in answers) == {200: 1, 409: PARALLEL - 1}
    (winner,) = [token for token, (status, _) in answers if status == 200]
    assert columns(any_plane, "t1")["claim_token"] == winner
    assert {body["claim_token_matches"] for _, (status, body) in answers if status == 409} == {False}
    assert all("task" not in body for _, (status, body) in answers if status == 409)


@pytest.mark.case("FC-001")
def test_a_claim_whose_answer_was_lost_is_told_to_be_ones_own(any_plane: Plane) -> None:
    """The claim is stored, the connection breaks before the answer, the client asks again."""
    node = any_plane.node()
    any_plane.create("t1", env={"A": "secret-value"})
    attempt = any_plane.scheduled(node, "t1")
    token = uuid.uuid4().hex
    body = {
        "node_id": "gpu-a",
        "attempt": attempt,
        "claim_token": token,
        "from_status": "scheduled",
        "status": "running",
    }
    connection = http.client.HTTPConnection("127.0.0.1", any_plane.port, timeout=30)
    headers = {
        "Content-Type": "application/json",
        "X-API-Key": KEY,
        "X-Node-Id": "gpu-a",
        "X-Instance-Id": node.instance_id,
    }
    connection.request("PUT", "/api/v1/tasks/t1", json.dumps(body), headers)
    connection.close()  # the answer never arrives
    _, (status, refusal) = node.claim("t1", attempt, token)
    if status == 200:  # the closed connection's request may come second
        _, (status, refusal) = node.claim("t1", attempt, token)
    assert (status, refusal["code"], refusal["claim_token_matches"]) == (409, "state_conflict", True)
    assert refusal["task"]["spec"]["env"] == {"A": "secret-value"}
    assert (refusal["task_status"], refusal["node_id"], refusal["attempt"]) == ("running", "gpu-a", attempt)
    _, (status, other) = node.claim("t1", attempt)
    assert (status, other["claim_token_matches"], "task" in other) == (409, False, False)
    assert columns(any_plane, "t1")["starts"] == 1


@pytest.mark.case("FC-002")
def test_a_late_success_changes_no_column_of_a_stopped_task(any_plane: Plane) -> None:
    """A task was stopped; a "finished" report that comes later must not turn it into a success."""
    node = any_plane.node()
    attempt, token = any_plane.running(node, "t1")
    any_plane.call("POST", "/api/v1/tasks/t1/stop")
    first = node.put("t1", attempt, token, "running", "stopped", exit_code=143, log_tail="bye")
    assert first[0] == 200
    before = columns(any_plane, "t1")
    status, refusal = node.put("t1", attempt, token, "running", "completed", exit_code=0, log_tail="done")
    assert (status, refusal["task_status"]) == (409, "stopped")
    after = columns(any_plane, "t1")
    assert after == before
    (event,) = any_plane.events(kind="late_result", task="t1")
    assert event["code"] == "completed"
    node.put("t1", attempt, token, "running", "completed", exit_code=0, log_tail="done")
    assert len(any_plane.events(kind="late_result", task="t1")) == 1, "told once"


@pytest.mark.case("FC-002")
def test_of_two_ends_at_once_the_first_stays(any_plane: Plane) -> None:
    """The two reports at the same moment, many times over."""
    node = any_plane.node(slots=300)
    rounds = 200
    for number in range(rounds):
        any_plane.create(f"t{number}")
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda number: any_plane.claimed(node, f"t{number}"), range(rounds)))

        def race(number: int) -> None:
            attempt, token = claims[number]
            start = Barrier(2)

            def end(how: tuple[str, dict[str, Any]]) -> tuple[int, str]:
                start.wait(30)
                return node.put(f"t{number}", attempt, token, "running", how[0], **how[1])[0], how[0]

            with ThreadPoolExecutor(2) as two:
                ends = list(two.map(end, [("stopped", {"exit_code": 143}), ("completed", {"exit_code": 0})]))
            assert sorted(status for status, _ in ends) == [200, 409]
            (winner,) = [target for status, target in ends if status == 200]
            row = columns(any_plane, f"t{number}")
            assert (row["status"], row["exit_code"]) == (winner, 143 if winner == "stopped" else 0)

        list(pool.map(race, range(rounds)))


@pytest.mark.case("FC-004")
def test_reading_work_and_going_away_changes_nothing(any_plane: Plane) -> None:
    """A poll that is cut off while it is answered: the work must be there the next time, on every channel."""
    node = any_plane.node(cards=1)
    any_plane.create("t1")
    any_plane.scheduled(node, "t1")
    image = {"node_id": "gpu-a", "op": "check", "image": "app:1"}
    assert any_plane.call("POST", "/api/v1/image-requests", image)[0] == 201
    slices = {
        "node_id": "gpu-a",
        "vendor": "nvidia-mig",
        "op": "create",
        "gpu_uuid": "GPU-gpu-a-0",
        "profiles": [{"name": "1g.10gb"}],
    }
    assert any_plane.call("POST", "/api/v1/slice-requests", slices)[0] == 201
    headers = {"X-API-Key": KEY, "X-Node-Id": "gpu-a", "X-Instance-Id": node.instance_id}
    for path, member in (
        ("/api/v1/tasks?node_id=gpu-a&status=scheduled", "tasks"),
        ("/api/v1/agent/image-requests?node_id=gpu-a&status=pending&limit=5", "requests"),
        ("/api/v1/agent/slice-requests?node_id=gpu-a&status=pending&limit=5", "requests"),
    ):
        _, first = node.call("GET", path)
        revision = any_plane.parts.db.revision
        for _ in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", any_plane.port, timeout=30)
            connection.request("GET", path, headers=headers)
            connection.close()
        status, again = node.call("GET", path)
        assert status == 200
        assert again == first
        assert len(again[member]) == 1
        assert any_plane.parts.db.revision == revision


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"from_status": "completed", "status": "running"}, 422, "illegal_transition"),
        ({"from_status": "pending", "status": "scheduled"}, 409, "illegal_transition"),
        ({"status": "completed", "exit_code": 1}, 409, "illegal_transition"),
        ({"status": "completed"}, 422, "invalid_task"),
        ({"status": "failed", "exit_code": 0}, 409, "illegal_transition"),
        ({"status": "failed", "reason": "who-knows"}, 409, "illegal_transition"),
        ({"attempt": 7, "status": "completed", "exit_code": 0}, 409, "state_conflict"),
        ({"claim_token": "another-token", "status": "completed", "exit_code": 0}, 409, "state_conflict"),
        ({"from_status": "sleeping", "status": "stopped"}, 409, "state_conflict"),
        ({"node_id": "gpu-b", "status": "completed", "exit_code": 0}, 403, "node_scope_mismatch"),
        ({"status": "won"}, 422, "invalid_task"),
        ({"status": "failed", "reason": "exited", "exit_code": 2**40}, 422, "invalid_task"),
    ],
)
def test_a_wrong_report_is_refused_and_changes_nothing(
    plane: Plane, change: dict[str, Any], status: int, code: str
) -> None:
    node = plane.node()
    attempt, token = plane.running(node, "t1")
    before = columns(plane, "t1")
    body = {"node_id": "gpu-a", "attempt": attempt, "claim_token": token, "from_status": "running", **change}
    got, refusal = node.call("PUT", "/api/v1/tasks/t1", body)
    assert (got, refusal["code"]) == (status, code)
    assert columns(plane, "t1") == before


def test_a_claim_of_another_instance_is_not_ones_own(plane: Plane) -> None:
    node = plane.node()
    attempt, token = plane.running(node, "t1")
    with plane.parts.db.engine.begin() as connection:
        connection.execute(sa.update(tasks).values(claim_instance="another-instance"))
    status, refusal = node.put("t1", attempt, token, "running", "completed", exit_code=0)
    assert (status, refusal["claim_token_matches"]) == (409, False)
    body = {"node_id": "gpu-a", "instance_id": node.instance_id, "attempt": attempt, "claim_token": token}
    status, refusal = node.call("POST", "/api/v1/tasks/t1/reclaim", body)
    assert (status, refusal["claim_token_matches"]) == (409, False), "nor can it be taken"
    assert plane.task("t1")["status"] == "running"


def test_texts_that_no_database_takes_are_taken(any_plane: Plane) -> None:
    node = any_plane.node()
    attempt, token = any_plane.running(node, "t1")
    facts = {"exit_code": 3, "reason": "exited", "error": "a\u0000b", "log_tail": "c\u0000d", "container_id": "e\u0000"}
    status, body = node.put("t1", attempt, token, "running", "failed", node_finished_at="yesterday", **facts)
    assert status == 200, body
    assert (body["error"], body["log_tail"], body["node_finished_at"]) == ("a\ufffdb", "c\ufffdd", None)
