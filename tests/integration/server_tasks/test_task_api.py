"""Creating, listing and reading tasks over HTTP, and who may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.server_tasks.conftest import KEY, Plane

BODY = {"id": "t1", "name": "a", "image": "app:1", "env": {"A": "very-secret"}}


def test_a_task_is_created_with_its_address_and_warnings(any_plane: Plane) -> None:
    status, body = any_plane.call("POST", "/api/v1/tasks", {"name": "a", "image": "app:1", "env": ["A=1", "PATH"]})
    assert status == 201
    assert any_plane.headers["Location"] == f"/api/v1/tasks/{body['id']}"
    assert len(body["id"]) == 26 and body["uid"] != body["id"]
    assert [warning["code"] for warning in body["warnings"]] == ["env_bare_name"]
    assert (body["status"], body["desired"], body["attempt"], body["spec"]["env"]) == (
        "pending",
        "run",
        0,
        {"A": "***"},
    )
    assert any_plane.task(body["id"]) == body


def test_an_equal_body_is_stored_once_and_another_one_is_refused(any_plane: Plane) -> None:
    first = any_plane.call("POST", "/api/v1/tasks", BODY)
    again = any_plane.call("POST", "/api/v1/tasks", dict(reversed(BODY.items())))
    assert (first[0], again[0]) == (201, 200)
    assert again[1]["uid"] == first[1]["uid"]
    for change in ({"env": {"A": "other"}}, {"priority": 51}):
        status, refusal = any_plane.call("POST", "/api/v1/tasks", {**BODY, **change})
        assert (status, refusal["code"]) == (409, "task_exists")
        assert "very-secret" not in str(refusal)


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"{", 400, "malformed_json"),
        (b"[]", 422, "invalid_task"),
        (b'{"name":"a","image":"app:1","imge":"x"}', 422, "invalid_task"),
        (b'{"name":"a"}', 422, "invalid_task"),
        (b'{"name":"a","image":"app:1","env":{"9":"very-secret"}}', 422, "invalid_task"),
        (b'{"name":"a\\u0000","image":"app:1"}', 422, "invalid_task"),
        (b'{"name":"' + b"x" * (9 << 20) + b'"}', 413, "body_too_large"),
    ],
)
def test_a_wrong_body_is_refused_in_one_answer(plane: Plane, raw: bytes, status: int, code: str) -> None:
    got, refusal = plane.call("POST", "/api/v1/tasks", raw=raw)
    assert (got, refusal["code"]) == (status, code)
    assert "very-secret" not in str(refusal)


def test_the_nearest_member_is_named(plane: Plane) -> None:
    _, refusal = plane.call("POST", "/api/v1/tasks", {"name": "a", "imge": "app:1", "gpus": {"cuont": 1}})
    found = {fault["path"]: fault["wanted"] for fault in refusal["errors"]}
    assert "image" in found["imge"] and "count" in found["gpus.cuont"]


def test_a_fleet_of_two_vendors_wants_a_vendor(plane: Plane) -> None:
    for node_id, vendor in (("gpu-a", "nvidia"), ("gpu-b", "hygon")):
        plane.node(node_id).beat(gpus=[{"uuid": f"{vendor}-1", "vendor": vendor}])
    status, refusal = plane.call("POST", "/api/v1/tasks", {"name": "a", "image": "app:1", "gpus": {"count": 1}})
    assert (status, refusal["code"]) == (422, "vendor_required")
    assert "hygon, nvidia" in refusal["detail"]


def test_lists_are_filtered_and_paged(any_plane: Plane) -> None:
    for number in range(5):
        any_plane.create(
            f"t{number}", labels={"team": "a" if number % 2 else "b"}, kind="training" if number else "job"
        )
    assert any_plane.call("POST", "/api/v1/tasks/t0/stop")[0] == 202
    seen: list[str] = []
    cursor = ""
    while True:
        page = any_plane.get(f"/api/v1/tasks?limit=2{cursor}")
        seen += [task["id"] for task in page["tasks"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == ["t4", "t3", "t2", "t1", "t0"]

    def ids(query: str) -> list[str]:
        return sorted(task["id"] for task in any_plane.get(f"/api/v1/tasks?{query}")["tasks"])

    assert ids("status=cancelled") == ["t0"]
    assert ids("status=cancelled,pending&kind=training") == ["t1", "t2", "t3", "t4"]
    assert ids("label=team%3Da") == ["t1", "t3"]
    assert ids("label=team%3Da&label=other%3Dx") == []
    assert ids("node_id=nowhere") == []


@pytest.mark.parametrize(
    "query",
    ["status=won", "status=", "kind=x", "limit=0", "limit=1001", "limit=x", "label=x", "label=%00%3D1", "cursor=%21",
     "node_id=A", "cursor=AAAA"],
)  # fmt: skip
def test_wrong_parameters_are_named(any_plane: Plane, query: str) -> None:
    status, refusal = any_plane.call("GET", f"/api/v1/tasks?{query}")
    assert (status, refusal["code"]) == (400, "bad_parameter")


def test_an_agent_lists_its_own_and_only_with_both_parameters(plane: Plane) -> None:
    node = plane.node()
    plane.create("low", priority=10)
    plane.create("high", priority=90)
    plane.scheduled(node, "low")
    plane.scheduled(node, "high")
    assert [task["id"] for task in node.scheduled()] == ["high", "low"]
    for query, code, status in (
        ("", "node_scope_required", 400),
        ("?node_id=gpu-a", "node_scope_required", 400),
        ("?status=scheduled", "node_scope_required", 400),
        ("?node_id=gpu-b&status=scheduled", "node_scope_mismatch", 403),
    ):
        got, refusal = node.call("GET", f"/api/v1/tasks{query}")
        assert (got, refusal["code"]) == (status, code), query


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/tasks"),
        ("POST", "/api/v1/tasks/t1/stop"),
        ("DELETE", "/api/v1/tasks/t1"),
        ("GET", "/api/v1/tasks/t1/logs"),
        ("GET", "/api/v1/events"),
        ("POST", "/api/v1/image-requests"),
        ("GET", "/api/v1/file-requests"),
    ],
)
def test_the_system_key_is_no_operator(plane: Plane, method: str, path: str) -> None:
    node = plane.node()
    status, refusal = node.call(method, path, BODY if method == "POST" else None)
    assert (status, refusal["code"]) == (403, "agent_key_not_allowed")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/v1/tasks"), ("DELETE", "/api/v1/tasks/t1"), ("POST", "/api/v1/tasks/t1/stop")]
)
def test_a_viewer_changes_nothing(plane: Plane, method: str, path: str) -> None:
    status, refusal = plane.call(method, path, BODY if method == "POST" else None, token="viewer-token")
    assert (status, refusal["code"]) == (403, "role_not_allowed")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/v1/tasks/t1"),
        ("POST", "/api/v1/tasks/t1/logs"),
        ("POST", "/api/v1/tasks/t1/reclaim"),
        ("PUT", "/api/v1/agent/slice-requests/x"),
        ("GET", "/api/v1/agent/image-requests"),
    ],
)
def test_an_operators_token_is_no_agent(plane: Plane, method: str, path: str) -> None:
    status, refusal = plane.call(method, path, {} if method != "GET" else None)
    assert (status, refusal["code"]) == (403, "operator_token_not_allowed")


@pytest.mark.parametrize("task_id", ["missing", "UPPER", "a%2Fb", "%00", "x" * 200])
def test_a_task_that_is_not_there_is_not_found(any_plane: Plane, task_id: str) -> None:
    node = any_plane.node()
    update = {"node_id": "gpu-a", "attempt": 1, "claim_token": "t" * 8, "from_status": "scheduled", "status": "running"}
    for status, refusal in (
        any_plane.call("GET", f"/api/v1/tasks/{task_id}"),
        any_plane.call("DELETE", f"/api/v1/tasks/{task_id}"),
        any_plane.call("POST", f"/api/v1/tasks/{task_id}/wake"),
        any_plane.call("GET", f"/api/v1/tasks/{task_id}/logs"),
        node.call("PUT", f"/api/v1/tasks/{task_id}", update),
    ):
        # A slash is another path, whatever it is written as.
        assert (status, refusal["code"]) in {(404, "task_not_found"), (404, "route_not_found")}


def test_events_are_read_onward_from_the_last_one(any_plane: Plane) -> None:
    any_plane.create("t1")
    any_plane.create("t2")
    assert any_plane.call("POST", "/api/v1/tasks/t1/stop")[0] == 202
    told = any_plane.events(task="t1")
    assert [(event["kind"], event["code"]) for event in told] == [
        ("task_state", "pending"),
        ("task_state", "cancelled"),
        ("operator_action", "stop"),
    ]
    assert {event["actor"] for event in told} == {"admin-name"}
    assert any_plane.events(task="t1", after=str(told[1]["id"])) == told[2:]
    assert any_plane.events(kind="operator_action") == told[2:]


def test_reclaim_gives_a_lost_journals_claim_back_to_its_own_instance(any_plane: Plane) -> None:
    node = any_plane.node()
    attempt, old = any_plane.running(node, "t1", env={"A": "very-secret"})
    body = {"node_id": "gpu-a", "instance_id": node.instance_id, "attempt": attempt, "claim_token": "new-token"}
    status, refusal = node.call("POST", "/api/v1/tasks/t1/reclaim", {**body, "attempt": attempt + 1})
    assert (status, refusal["code"]) == (409, "state_conflict")
    status, task = node.call("POST", "/api/v1/tasks/t1/reclaim", body)
    assert (status, task["spec"]["env"]) == (200, {"A": "***"})  # secrets come with the new token, when asked for
    _, task = node.call("GET", "/api/v1/tasks/t1", headers={"X-Claim-Token": "new-token"})
    assert task["spec"]["env"] == {"A": "very-secret"}
    assert node.put("t1", attempt, old, "running", "completed", exit_code=0)[0] == 409
    assert node.put("t1", attempt, "new-token", "running", "completed", exit_code=0)[0] == 200
    assert node.call("POST", "/api/v1/tasks/t1/reclaim", body)[1]["task_status"] == "completed"
    assert [event["code"] for event in any_plane.events(kind="claim_recovered")] == ["reclaimed"]


def test_a_new_instance_of_the_same_machine_may_end_what_the_old_one_claimed(any_plane: Plane) -> None:
    node = any_plane.node()
    attempt, token = any_plane.running(node, "t1")
    node.beat(leaving=True)
    node.instance_id, node.boot_id, node.run = "a-new-instance", "b2-b2-b2-b2", 1
    assert node.beat()[0] == 200
    assert node.put("t1", attempt, token, "running", "completed", exit_code=0)[0] == 200


def test_a_checkpoint_becomes_an_event(any_plane: Plane) -> None:
    node = any_plane.node()
    attempt, token = any_plane.running(node, "t1")
    found: dict[str, Any] = {"attempt": attempt, "claim_token": token, "found": True, "path": "/ck/10", "step": 10}
    found["rejected"] = [{"path": "/ck/20", "reason": "optimizer shard 3 is empty"}]
    assert node.call("POST", "/api/v1/tasks/t1/checkpoint-resume", found) == (204, None)
    (event,) = any_plane.events(kind="checkpoint_resume")
    assert event["code"] == "found" and "/ck/20: optimizer shard 3 is empty" in event["detail"]
    status, refusal = node.call("POST", "/api/v1/tasks/t1/checkpoint-resume", {**found, "claim_token": "x" * 9})
    assert (status, refusal["claim_token_matches"]) == (409, False)
    assert node.call("POST", "/api/v1/tasks/t1/checkpoint-resume", found)[0] == 204, "an answer was lost"
    assert len(any_plane.events(kind="checkpoint_resume")) == 1
    rejected = [{"path": "p" * 100_000, "reason": "torn"}]
    assert node.call("POST", "/api/v1/tasks/t1/checkpoint-resume", {**found, "rejected": rejected})[0] == 204
    assert len(any_plane.events(kind="checkpoint_resume")[-1]["detail"]) <= 4000
    assert node.put("t1", attempt, token, "running", "completed", exit_code=0)[0] == 200
    late = {"attempt": attempt, "claim_token": token, "found": False}
    assert node.call("POST", "/api/v1/tasks/t1/checkpoint-resume", late)[0] == 204, "it is over by now"
    assert any_plane.events(kind="checkpoint_resume")[-1]["code"] == "none"
    other = any_plane.node("gpu-b")
    assert other.call("POST", "/api/v1/tasks/t1/checkpoint-resume", late)[0] == 409


def test_a_log_goes_on_where_it_ended_and_says_its_gaps(any_plane: Plane) -> None:
    node = any_plane.node()
    attempt, token = any_plane.running(node, "t1")

    def send(start: int, text: str, dropped: int = 0, end: int | None = None) -> tuple[int, Any]:
        chunk = {"attempt": attempt, "claim_token": token, "from": start, "data": text, "dropped": dropped}
        chunk["to"] = end if end is not None else start + len(text.encode())
        return node.call("POST", "/api/v1/tasks/t1/logs", chunk)

    assert send(0, "one\ntwo\n")[0] == 204
    assert send(0, "one\ntwo\n")[0] == 204, "an answer was lost: taken again without effect"
    status, refusal = send(9, "x")
    assert (status, refusal["code"], refusal["held_end"]) == (409, "log_offset", 8)
    assert send(108, "gr\u00fcn\n", dropped=100)[0] == 204
    assert send(3, "x", end=1)[1]["code"] == "bad_parameter"
    log = any_plane.get("/api/v1/tasks/t1/logs")
    assert (log["from"], log["to"], log["dropped"]) == (0, 114, 100)
    assert log["data"] == "one\ntwo\n\n[100 bytes of output are gone here]\ngr\u00fcn\n"
    assert any_plane.get("/api/v1/tasks/t1/logs?from=111")["data"] == "n\n", "moved on to a whole character"
    assert any_plane.get("/api/v1/tasks/t1/logs?from=114")["data"] == ""
    assert any_plane.get("/api/v1/tasks/t1/logs?tail=1")["data"] == "gr\u00fcn\n"
    any_plane.get("/api/v1/tasks/t1/logs?follow=true")
    (follow,) = node.beat()[1]["follow"]
    assert (follow["task_id"], follow["attempt"]) == ("t1", attempt)
    assert node.call("POST", "/api/v1/tasks/t1/logs", {"attempt": attempt, "claim_token": "z" * 9, "from": 0, "to": 0,
                     "data": ""})[1]["code"] == "state_conflict"  # fmt: skip


def test_the_last_mebibyte_of_a_log_is_kept(plane: Plane) -> None:
    node = plane.node()
    attempt, token = plane.running(node, "t1")
    line = "x" * (256 * 1024)
    for number in range(6):
        chunk = {"attempt": attempt, "claim_token": token, "from": number * len(line), "to": (number + 1) * len(line)}
        assert node.call("POST", "/api/v1/tasks/t1/logs", {**chunk, "data": line})[0] == 204
    log = plane.get("/api/v1/tasks/t1/logs")
    assert (log["to"], log["to"] - log["from"], log["dropped"]) == (6 * len(line), 1 << 20, 2 * len(line))


def test_the_key_is_not_needed_to_be_told_apart(plane: Plane) -> None:
    assert KEY not in str(plane.get("/openapi.json"))


def test_why_a_task_is_where_it_is(any_plane: Plane) -> None:
    node = any_plane.node(cards=1)
    any_plane.create("t1", gpus={"count": 2, "vendor": "nvidia"})
    why = any_plane.get("/api/v1/tasks/t1/why")
    assert (why["subject"], why["state"], why["fits"]) == ({"kind": "task", "id": "t1"}, "pending", False)
    assert why["smallest_change"]["node_id"] == "gpu-a"
    assert [one["code"] for one in why["nodes"][0]["constraints"] if not one["ok"]][-1] == "free"
    attempt, token = any_plane.running(node, "t2")
    assert any_plane.get("/api/v1/tasks/t2/why")["summary"] == "gpu-a holds it."
    node.put("t2", attempt, token, "running", "completed", exit_code=0)
    assert any_plane.get("/api/v1/tasks/t2/why")["summary"] == "It ended as completed (exited)."
    assert any_plane.call("GET", "/api/v1/tasks/missing/why")[0] == 404


def test_one_body_sent_twenty_times_at_once_is_one_task(any_plane: Plane) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: any_plane.call("POST", "/api/v1/tasks", BODY), range(20)))
    assert sorted(status for status, _ in answers) == [200] * 19 + [201]
    assert len({body["uid"] for _, body in answers}) == 1
