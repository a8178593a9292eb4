"""How attempts end: run again, handed back, cordoned, deleted, told too late; cards with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import sqlalchemy as sa

from runtime.protocol.codec import decode
from runtime.protocol.nodes import NodeState
from runtime.protocol.tasks import Task
from runtime.server.store.tables import attempts, exclusions, gpu_allocations, nodes, tasks
from tests.integration.server_tasks.conftest import Plane, eventually
from tests.lab.simulated_node import SimulatedNode

HAND_BACK = {"reason": "port_in_use", "error": "port 80 is taken"}


def allocations(plane: Plane, task_id: str | None = None) -> list[dict[str, Any]]:
    query = sa.select(gpu_allocations)
    if task_id is not None:
        query = query.where(gpu_allocations.c.uid == plane.task(task_id)["uid"])
    return [dict(row) for row in plane.rows(query)]


def holding(plane: Plane, node: SimulatedNode, task_id: str, attempt: int, phase: str = "running") -> None:
    """The node's beats show the claim from now on."""
    uid = plane.task(task_id)["uid"]
    node.health = [{"task_id": task_id, "uid": uid, "attempt": attempt, "phase": phase, "ready": True}]
    assert node.beat()[0] == 200


def test_a_program_that_ended_is_never_run_again(any_plane: Plane) -> None:
    node = any_plane.node(cards=2)
    attempt, token = any_plane.running(node, "t1", kind="training", gpus={"count": 2})
    assert len(allocations(any_plane, "t1")) == 2
    status, body = node.put("t1", attempt, token, "running", "failed", exit_code=3, reason="exited", log_tail="no")
    assert status == 200
    shown = any_plane.task("t1")
    assert shown == body
    wanted = {"status": "failed", "exit_code": 3, "reason": "exited", "reason_class": "program", "log_tail": "no"}
    assert {name: shown[name] for name in wanted} == wanted
    assert (shown["starts"], shown["max_attempts"], len(shown["attempts"])) == (1, 3, 1)
    assert shown["attempts"][0]["ended_at"] is not None
    assert [card["uuid"] for card in shown["gpus_assigned"]] == ["GPU-gpu-a-0", "GPU-gpu-a-1"]
    assert allocations(any_plane) == []
    states = [(event["code"], event["node_id"]) for event in any_plane.events(kind="task_state", task="t1")]
    assert states == [("pending", None), ("scheduled", "gpu-a"), ("running", "gpu-a"), ("failed", "gpu-a")]
    assert len(any_plane.events(kind="task_state", node="gpu-a")) == 3


def test_what_a_node_says_beside_an_end_becomes_the_tasks_warnings(any_plane: Plane) -> None:
    node = any_plane.node()
    attempt, token = any_plane.running(node, "t1", env=["LOST"])
    said = [
        {"code": "oom_inside", "detail": "x" * 2000},
        {"code": "odd", "detail": "a\0b"},
        {"code": "odd", "detail": "c"},
    ]
    status, body = node.put("t1", attempt, token, "running", "completed", exit_code=0, warnings=said)
    assert (status, body["status"], body["error"]) == (200, "completed", None)
    assert [one["code"] for one in body["warnings"]] == ["env_bare_name", "oom_inside", "odd"]
    assert [len(body["warnings"][1]["detail"]), body["warnings"][2]["detail"]] == [1000, "a\ufffdb"]
    many = [{"code": f"c{number}", "detail": "d"} for number in range(20)]
    attempt, token = any_plane.running(node, "t2")
    status, body = node.put("t2", attempt, token, "running", "completed", exit_code=0, warnings=many)
    assert status == 200 and len(body["warnings"]) == 8


@pytest.mark.case("FC-021")
def test_an_infrastructure_end_runs_again_until_the_starts_are_used_up(any_plane: Plane) -> None:
    """What Docker refused to start is not the program's result: it gets another start, but not for ever."""
    node = any_plane.node()
    any_plane.create("t1", max_attempts=2)
    for number in (1, 2):
        attempt, token = any_plane.claimed(node, "t1")
        assert attempt == number
        status, body = node.put(
            "t1", attempt, token, "running", "failed", exit_code=127, reason="start_failed", error="exec: not found"
        )
        assert status == 200
        assert body["status"] == ("pending" if number == 1 else "failed")
    shown = any_plane.task("t1")
    assert (shown["starts"], shown["reason"], shown["error"]) == (2, "start_failed", "exec: not found")
    assert [one["reason"] for one in shown["attempts"]] == ["start_failed", "start_failed"]


def test_a_task_that_shall_stop_is_not_run_again(plane: Plane) -> None:
    node = plane.node()
    attempt, token = plane.running(node, "t1", max_attempts=3)
    assert plane.call("POST", "/api/v1/tasks/t1/stop")[0] == 202
    _, body = node.put("t1", attempt, token, "running", "failed", reason="lost_container")
    assert (body["status"], body["reason"], body["desired"]) == ("failed", "lost_container", "stop")


def test_a_hand_back_costs_no_start_and_leaves_the_node_out(any_plane: Plane) -> None:
    first = any_plane.node("gpu-a", cards=1)
    attempt, token = any_plane.running(first, "t1", gpus={"count": 1})
    _, body = first.put("t1", attempt, token, "running", "pending", **HAND_BACK)
    assert (body["status"], body["starts"], body["node_id"]) == ("pending", 0, None)
    assert body["attempts"][0]["reason"] == "port_in_use"
    assert allocations(any_plane, "t1") == []
    assert [row["node_id"] for row in any_plane.rows(sa.select(exclusions))] == ["gpu-a"]
    second = any_plane.node("gpu-b", cards=1)
    assert any_plane.scheduled(second, "t1") == attempt + 1
    assert first.scheduled() == []


def test_three_in_a_row_cordon_the_node_and_a_finished_program_breaks_the_row(any_plane: Plane) -> None:
    node = any_plane.node()
    ends = ["back", "back", "done", "back", "infrastructure", "back"]
    for number, how in enumerate(ends):
        assert any_plane.get("/api/v1/nodes/gpu-a")["schedulable"], number
        attempt, token = any_plane.running(node, f"t{number}")
        if how == "done":
            node.put(f"t{number}", attempt, token, "running", "failed", exit_code=1, reason="exited")
        elif how == "back":
            node.put(f"t{number}", attempt, token, "running", "pending", **HAND_BACK)
        else:
            node.put(f"t{number}", attempt, token, "running", "failed", reason="engine_unavailable")
    shown = any_plane.get("/api/v1/nodes/gpu-a")
    assert (shown["schedulable"], shown["cordon"]["owner"]) == (False, "system")
    (event,) = any_plane.events(kind="node_cordoned")
    assert (event["node_id"], event["code"]) == ("gpu-a", "bad_ends")
    (row,) = any_plane.rows(sa.select(nodes.c.bad_ends))
    assert row["bad_ends"] == 3


def test_secrets_are_sealed_shown_to_the_claim_alone_and_wiped_at_the_end(any_plane: Plane) -> None:
    secret = "s3cr3t-value"
    auth = {"server": "registry:5000", "username": "lab", "password": secret}
    owner, stranger = any_plane.node("gpu-a"), any_plane.node("gpu-b")
    created = any_plane.create("t1", node_id="gpu-a", env={"A": secret}, registry_auth=auth)
    assert secret not in str(created)
    attempt = any_plane.scheduled(owner, "t1")
    assert secret not in str(owner.scheduled())
    token, (_, claimed) = owner.claim("t1", attempt)
    assert claimed["spec"]["env"] == {"A": secret}
    assert claimed["spec"]["registry_auth"] == auth
    assert secret not in str(owner.task("t1"))
    read = owner.call("GET", "/api/v1/tasks/t1", headers={"X-Claim-Token": token})[1]
    assert read["spec"]["registry_auth"] == auth
    assert secret not in str(owner.call("GET", "/api/v1/tasks/t1", headers={"X-Claim-Token": token + "x"}))
    outline = stranger.task("t1")[1]
    assert set(outline) == {"id", "uid", "status", "node_id", "attempt"}, "what it may not see is not told as unknown"
    assert decode(Task, outline).attempt == attempt, "agents read it as a task"
    (row,) = any_plane.rows(sa.select(tasks))
    assert secret not in str({name: value for name, value in row.items() if name != "secrets"})
    assert secret.encode() not in bytes(row["secrets"])
    _, ended = owner.put("t1", attempt, token, "running", "completed", exit_code=0)
    assert secret not in str(ended)
    (row,) = any_plane.rows(sa.select(tasks.c.secrets))
    assert row["secrets"] is None


def test_a_claim_token_of_any_characters_is_only_a_wrong_one(plane: Plane) -> None:
    node = plane.node()
    plane.running(node, "t1", env={"A": "hidden"})
    for token in ("é", "\xff\xfe", ""):
        status, read = node.call("GET", "/api/v1/tasks/t1", headers={"X-Claim-Token": token})
        assert (status, read["spec"]["env"]) == (200, {"A": "***"})


def test_deleting_goes_as_far_as_the_node_has_said(any_plane: Plane) -> None:
    node = any_plane.node(cards=1)
    attempt, token = any_plane.running(node, "t1", gpus={"count": 1})
    status, body = any_plane.call("DELETE", "/api/v1/tasks/t1")
    assert (status, body["desired"], body["status"]) == (202, "delete", "running")
    _, answer = node.beat()
    assert [(intent["task_id"], intent["desired"]) for intent in answer["intents"]] == [("t1", "delete")]
    status, body = node.put("t1", attempt, token, "running", "stopped", exit_code=143)
    assert (status, body["status"]) == (200, "stopped")
    assert any_plane.call("GET", "/api/v1/tasks/t1")[0] == 404
    assert node.task("t1")[1]["code"] == "task_not_found"
    assert node.beat()[1]["intents"] == []
    assert any_plane.rows(sa.select(attempts)) == [] == allocations(any_plane)


def test_what_waits_or_has_ended_is_deleted_at_once(plane: Plane) -> None:
    plane.create("waits")
    assert plane.call("DELETE", "/api/v1/tasks/waits") == (204, None)
    node = plane.node()
    attempt, token = plane.running(node, "ended")
    node.put("ended", attempt, token, "running", "completed", exit_code=0)
    assert plane.call("DELETE", "/api/v1/tasks/ended") == (204, None)
    plane.create("unclaimed")
    attempt = plane.scheduled(node, "unclaimed")
    status, body = plane.call("DELETE", "/api/v1/tasks/unclaimed")
    assert (status, body["status"], body["desired"]) == (202, "cancelled", "delete")
    assert node.claim("unclaimed", attempt)[1][0] == 404
    for task_id in ("waits", "ended", "unclaimed"):
        assert plane.call("DELETE", f"/api/v1/tasks/{task_id}")[0] == 404
    assert plane.rows(sa.select(tasks)) == []


def test_force_drops_the_row_and_keeps_the_card_until_the_node_has_let_go(any_plane: Plane) -> None:
    node = any_plane.node(cards=1)
    attempt, _token = any_plane.running(node, "t1", gpus={"count": 1})
    holding(any_plane, node, "t1", attempt)
    assert any_plane.call("DELETE", "/api/v1/tasks/t1?force=true")[0] == 204
    assert any_plane.call("GET", "/api/v1/tasks/t1")[0] == 404
    (held,) = allocations(any_plane)
    assert held["releasing"]
    any_plane.create("t2", gpus={"count": 1})
    for _ in range(5):
        node.beat()
    assert any_plane.task("t2")["status"] == "pending"
    node.health = []

    def free() -> bool:
        node.beat()
        return bool(any_plane.task("t2")["status"] == "scheduled")

    eventually("the card is given to the next task", free)


def test_reschedule_makes_a_new_attempt_and_keeps_the_old_ones_card(any_plane: Plane) -> None:
    node = any_plane.node(cards=2)
    attempt, token = any_plane.running(node, "t1", gpus={"count": 1})
    status, body = any_plane.call("POST", "/api/v1/tasks/t1/reschedule")
    assert (status, body["status"]) == (202, "pending")
    assert any_plane.scheduled(node, "t1") == attempt + 1
    assert sorted(row["releasing"] for row in allocations(any_plane, "t1")) == [False, True]
    status, refusal = node.put("t1", attempt, token, "running", "completed", exit_code=0)
    assert (status, refusal["attempt"], refusal["claim_token_matches"]) == (409, attempt + 1, False)
    assert [row["attempt"] for row in allocations(any_plane, "t1")] == [attempt + 1], "the node says it has ended"
    assert len(any_plane.events(kind="late_result")) == 1


def test_sleeping_frees_the_card_and_waking_gets_the_same_one(any_plane: Plane) -> None:
    node = any_plane.node(cards=2)
    attempt, token = any_plane.running(node, "t1", gpus={"count": 1})
    assert any_plane.call("POST", "/api/v1/tasks/t1/wake")[1]["code"] == "not_running"
    assert any_plane.call("POST", "/api/v1/tasks/t1/sleep")[1]["desired"] == "sleep"
    assert node.put("t1", attempt, token, "running", "sleeping")[0] == 200
    assert allocations(any_plane) == []
    status, refusal = any_plane.call("POST", "/api/v1/tasks/t1/reschedule")
    assert (status, refusal["code"]) == (409, "illegal_transition"), "what sleeps never moves"
    assert any_plane.task("t1")["status"] == "sleeping"
    other_attempt, other_token = any_plane.running(node, "t2", gpus={"count": 1})
    assert any_plane.task("t2")["gpus_assigned"][0]["uuid"] == "GPU-gpu-a-0"
    assert any_plane.call("POST", "/api/v1/tasks/t1/wake")[1]["desired"] == "run"
    status, refusal = node.put("t1", attempt, token, "sleeping", "running")
    assert (status, refusal["code"]) == (409, "cards_not_allocated")
    node.put("t2", other_attempt, other_token, "running", "completed", exit_code=0)
    eventually("the card is the sleeper's again", lambda: bool(allocations(any_plane, "t1")))
    (intent,) = node.beat()[1]["intents"]
    assert intent["gpus"] == ["GPU-gpu-a-0"]
    status, body = node.put("t1", attempt, token, "sleeping", "running")
    assert (status, body["status"], body["attempt"]) == (200, "running", attempt)


@pytest.mark.parametrize(
    ("state", "action", "status", "code"),
    [
        ("pending", "stop", 202, None),
        ("pending", "sleep", 409, "not_running"),
        ("pending", "wake", 409, "not_running"),
        ("pending", "reschedule", 409, "not_running"),
        ("scheduled", "stop", 202, None),
        ("scheduled", "sleep", 409, "not_running"),
        ("scheduled", "reschedule", 202, None),
        ("running", "stop", 202, None),
        ("running", "sleep", 202, None),
        ("running", "wake", 409, "not_running"),
        ("completed", "stop", 409, "not_running"),
        ("completed", "reschedule", 409, "not_running"),
        ("stopping", "stop", 202, None),
        ("stopping", "sleep", 409, "illegal_transition"),
        ("stopping", "reschedule", 409, "illegal_transition"),
    ],
)
def test_what_operators_may_ask_for(plane: Plane, state: str, action: str, status: int, code: str | None) -> None:
    if state == "pending":
        plane.create("t1")
    else:
        node = plane.node()
        if state == "scheduled":
            plane.create("t1")
            plane.scheduled(node, "t1")
        else:
            attempt, token = plane.running(node, "t1")
            if state == "completed":
                node.put("t1", attempt, token, "running", "completed", exit_code=0)
            elif state == "stopping":
                plane.call("POST", "/api/v1/tasks/t1/stop")
    got, body = plane.call("POST", f"/api/v1/tasks/t1/{action}")
    assert (got, body.get("code")) == (status, code)
    if status == 202:
        assert [event["actor"] for event in plane.events(kind="operator_action")][-1] == "admin-name"
        if action == "stop":
            cancelled = state in ("pending", "scheduled")
            assert (body["status"], body["desired"]) == (("cancelled", "run") if cancelled else ("running", "stop"))


def test_phase_and_endpoints_come_from_the_newest_beat(plane: Plane) -> None:
    node = plane.node()
    attempt, _ = plane.running(node, "t1", ports=[{"container": 8000, "host": 18000}, {"container": 9000}])
    assert (plane.task("t1")["phase"], plane.task("t1")["ready"]) == (None, None)
    holding(plane, node, "t1", attempt, "loading")
    node.beat(host={"hostname": "gpu-a", "cpu_cores": 64, "memory_total_mib": 1 << 20, "mgmt_addr": "10.0.0.7"})
    shown = plane.task("t1")
    assert (shown["phase"], shown["ready"]) == ("loading", True)
    with pytest.MonkeyPatch.context() as patch:
        view = plane.parts.presence.view("gpu-a")
        assert view is not None
        silent = dataclasses.replace(view, state=NodeState.UNREACHABLE)
        patch.setattr(plane.parts.presence, "view", lambda node_id: silent)
        read = plane.task("t1")
        assert (read["status"], read["ready"]) == ("running", None), "nobody knows what a silent node's probe finds"
    assert shown["endpoints"] == [
        {"container_port": 8000, "address": "10.0.0.7", "port": 18000},
        {"container_port": 9000, "address": "10.0.0.7", "port": None},
    ]
    phases = eventually("the phase is an event", lambda: plane.events(kind="task_phase", task="t1"))
    assert [event["code"] for event in phases] == ["loading"]
    eventually("the start is known", lambda: plane.task("t1")["attempts"][0]["started_at"])
