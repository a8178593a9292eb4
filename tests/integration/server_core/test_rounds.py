"""What the rounds do to a live control plane: states, work that goes elsewhere, operators' words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runtime.protocol import times
from runtime.server.services import drains
from runtime.server.store import tables
from tests.integration.server_core.plane import FULL, UNCHANGED, Agent, Plane, running, wait_until

QUICK: dict[str, Any] = {
    "heartbeat_interval_s": 1,
    "unreachable_after_beats": 1,
    "lost_after_beats": 2,
    "start_grace_s": 0,
    "offline_grace_s": 0.5,
}


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Plane]:
    with running(tmp_path, **QUICK) as plane:
        yield plane


def state(plane: Plane, node_id: str = "gpu-a") -> str:
    found: str = plane.operator("GET", f"/api/v1/nodes/{node_id}").body["state"]
    return found


def submit(plane: Plane, **members: Any) -> dict[str, Any]:
    made = plane.operator("POST", "/api/v1/tasks", {"name": "t", "image": "registry/one:1", **members})
    assert made.status == 201, made.raw
    found: dict[str, Any] = made.body
    return found


def task(plane: Plane, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.operator("GET", f"/api/v1/tasks/{task_id}").body
    return found


def codes(plane: Plane) -> list[str]:
    return [event["code"] for event in plane.events("node_state")]


def test_a_silent_node_goes_through_the_states_and_comes_back(quick: Plane) -> None:
    agent = Agent(quick)
    agent.beat(**FULL)
    wait_until(lambda: state(quick) == "lost", "lost")
    agent.beat(**UNCHANGED)
    wait_until(lambda: state(quick) == "online", "back")
    assert codes(quick) == ["unreachable", "lost", "online"]


def test_a_node_that_leaves_is_offline_and_after_its_grace_lost(quick: Plane) -> None:
    agent = Agent(quick)
    agent.beat(**FULL)
    agent.beat(**UNCHANGED, leaving=True)
    wait_until(lambda: state(quick) == "lost", "lost")
    assert codes(quick) == ["offline", "lost"]


def test_the_brake_holds_when_many_fall_silent_together(tmp_path: Path) -> None:
    with running(tmp_path, **QUICK) as plane:
        agents = [Agent(plane, f"gpu-{number}", f"instance-{number:04d}") for number in range(4)]
        for agent in agents:
            agent.beat(**FULL)
        wait_until(lambda: plane.call("GET", "/readyz").body["brake"]["on"], "the brake")
        body = plane.call("GET", "/readyz").body
        assert body["status"] == "ready"
        assert body["brake"]["causes"] == ["many_silent"]
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 3, "more than the time after which a node is lost")
        assert {state(plane, agent.node_id) for agent in agents} == {"unreachable"}
        for agent in agents:
            agent.beat(**UNCHANGED)
        wait_until(lambda: not plane.call("GET", "/readyz").body["brake"]["on"], "it lets go by itself")
        # Told after it is so; by then the agents, which beat once, may be silent again.
        wait_until(lambda: [event["code"] for event in plane.events("brake")][:2] == ["on", "off"], "it is told")


def test_a_task_is_placed_and_its_node_hears_of_it(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    made = submit(plane)
    wait_until(lambda: task(plane, made["id"])["status"] == "scheduled", "it is placed")
    answer = agent.beat(**UNCHANGED).body
    assert answer["pending"]["tasks"] == 1
    assert [(intent["uid"], intent["status"], intent["desired"]) for intent in answer["intents"]] == [
        (made["uid"], "scheduled", "run")
    ]
    assert answer["revision"] == plane.parts.db.revision
    pending = plane.call("GET", "/api/v1/agent/pending?node_id=gpu-a", headers=agent.headers)
    assert pending.body == answer["pending"]


def test_a_change_is_in_the_next_answer(plane: Plane, agent: Agent) -> None:
    """The answer never lags behind a commit of the same server."""
    agent.beat(**FULL)
    made = submit(plane)
    wait_until(lambda: agent.beat(**UNCHANGED).body["intents"], "it is placed")
    # Nobody else keeps the board current: what the answer holds, it looked up itself.
    assert plane.parts.background is not None
    plane.parts.background._keeper.stop()
    plane.parts.background._keeper.join(40)
    plane.operator("POST", f"/api/v1/tasks/{made['id']}/stop")
    assert agent.beat(**UNCHANGED).body["intents"] == []


def test_a_cordon_sends_unclaimed_work_away_and_lets_nothing_in(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    made = submit(plane)
    wait_until(lambda: task(plane, made["id"])["status"] == "scheduled", "it is placed")
    answer = plane.operator("POST", "/api/v1/nodes/gpu-a/cordon", {"reason": "new fans"})
    assert answer.status == 200
    assert (answer.body["schedulable"], answer.body["cordon"]["reason"], answer.body["cordon"]["owner"]) == (
        False,
        "new fans",
        "test-admin",
    )
    assert task(plane, made["id"])["status"] == "pending"
    assert agent.beat(**UNCHANGED).body["intents"] == []
    answer = plane.operator("POST", "/api/v1/nodes/gpu-a/uncordon")
    assert (answer.body["schedulable"], answer.body["cordon"]) == (True, None)
    wait_until(lambda: task(plane, made["id"])["status"] == "scheduled", "it is placed again")
    assert [event["code"] for event in plane.events("node_cordoned")] == ["cordoned", "uncordoned"]


@pytest.mark.parametrize("body", [None, {}])
def test_a_cordon_needs_no_reason(plane: Plane, agent: Agent, body: dict[str, Any] | None) -> None:
    agent.beat(**FULL)
    answer = plane.operator("POST", "/api/v1/nodes/gpu-a/cordon", body)
    assert (answer.status, answer.body["schedulable"], answer.body["cordon"]["reason"]) == (200, False, "")
    (node,) = plane.operator("GET", f"/api/v1/tasks/{submit(plane)['id']}/why").body["nodes"]
    (said,) = [one["text"] for one in node["constraints"] if one["code"] == "schedulable"]
    assert said == "the node is cordoned by test-admin"


def test_who_comes_back_to_its_own_cordon_lifts_no_other(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    path = "/api/v1/nodes/gpu-a"
    ours = plane.operator("POST", f"{path}/cordon", {"reason": "tool run 1", "if_free": True})
    assert (ours.status, ours.body["cordon"]["reason"]) == (200, "tool run 1")
    # The same tool again, after it was interrupted: by owner and actor it knows its own.
    again = plane.operator("POST", f"{path}/cordon", {"reason": "tool run 2", "if_free": True})
    assert (again.status, again.code) == (409, "state_conflict")
    assert (again.body["cordon"], again.body["actor"]) == (ours.body["cordon"], ours.body["cordon"]["owner"])

    with plane.parts.db.engine.begin() as connection:
        connection.execute(sa.update(tables.nodes).where(tables.nodes.c.id == "gpu-a").values(bad_ends=2))
    for other in ("cordon", "drain"):
        assert plane.operator("POST", f"{path}/{other}", {"reason": "new fans"}).status == 200
        for body in ({"reason": "tool run 1", "owner": "test-admin"}, {"reason": "new fans", "owner": "tool"}):
            late = plane.operator("POST", f"{path}/uncordon", body)
            assert (late.status, late.code) == (409, "state_conflict")
            assert late.body["cordon"]["reason"] == "new fans"
    refused = plane.operator("POST", f"{path}/cordon", {"reason": "tool run 3", "if_free": True})
    assert refused.body["cordon"]["reason"] == "new fans"
    assert plane.operator("GET", path).body["draining"] is True

    done = plane.operator("POST", f"{path}/uncordon", {"reason": "new fans", "owner": "test-admin"})
    assert (done.status, done.body["cordon"], done.body["draining"]) == (200, None, False)
    with plane.parts.db.engine.connect() as connection:
        counted = sa.select(tables.nodes.c.bad_ends).where(tables.nodes.c.id == "gpu-a")
        assert connection.execute(counted).scalar() == 2, "who ends a certain cordon does not judge the node"


@pytest.mark.parametrize(("then", "desired"), [("leave", "run"), ("stop", "stop"), ("reschedule", "run")])
def test_a_drain_ends_as_it_was_told(plane: Plane, agent: Agent, then: str, desired: str) -> None:
    agent.beat(**FULL)
    made = submit(plane)
    wait_until(lambda: task(plane, made["id"])["status"] == "scheduled", "it is placed")
    claimed = plane.call(
        "PUT",
        f"/api/v1/tasks/{made['id']}",
        {
            "node_id": "gpu-a",
            "attempt": 1,
            "claim_token": "token-000001",
            "from_status": "scheduled",
            "status": "running",
        },
        agent.headers,
    )
    assert claimed.status == 200, claimed.raw
    answer = plane.operator("POST", "/api/v1/nodes/gpu-a/drain", {"deadline_s": 0.1, "then": then})
    assert (answer.body["draining"], answer.body["schedulable"]) == (True, False)
    wait_until(lambda: "drain_deadline" in [event["code"] for event in plane.events("node_cordoned")], "the deadline")
    status = "pending" if then == "reschedule" else "running"
    assert (task(plane, made["id"])["status"], task(plane, made["id"])["desired"]) == (status, desired)


def test_a_drain_is_done_when_the_node_says_so(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL, live_task_ids=[], task_health=[])
    answer = plane.operator("POST", "/api/v1/nodes/gpu-a/drain", {"reason": "new fans"})
    assert (answer.body["draining"], answer.body["schedulable"]) == (True, False)
    for unknown in ({}, {"live_task_ids": []}, {"live_task_ids": ["t"], "task_health": []}):
        agent.beat(**UNCHANGED, **unknown)
        drains.finish(plane.parts.db, plane.parts.presence, plane.parts.board, times.now())
        assert plane.operator("GET", "/api/v1/nodes/gpu-a").body["draining"] is True
    agent.beat(**UNCHANGED, live_task_ids=[], task_health=[])
    wait_until(lambda: plane.operator("GET", "/api/v1/nodes/gpu-a").body["draining"] is False, "the drain is done")
    shown = plane.operator("GET", "/api/v1/nodes/gpu-a").body
    assert (shown["schedulable"], shown["cordon"]["reason"]) == (False, "new fans")
    assert [event["code"] for event in plane.events("node_cordoned")] == ["draining", "drained"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("nodes/gpu-x/cordon", {"reason": "r"}, 404, "node_not_found"),
        ("nodes/gpu-x/uncordon", None, 404, "node_not_found"),
        ("nodes/gpu-x/drain", {}, 404, "node_not_found"),
        ("nodes/gpu-x/release", None, 404, "node_not_found"),
        ("nodes/gpu-a/cordon", {"reason": 5}, 422, "invalid_task"),
        ("nodes/gpu-a/cordon", {"reason": "r", "reson": "x"}, 422, "invalid_task"),
        ("nodes/gpu-a/uncordon", {"resaon": "r"}, 422, "invalid_task"),
        ("nodes/gpu-a/uncordon", {"reason": "r"}, 409, "state_conflict"),
        ("nodes/gpu-a/drain", {"then": "explode"}, 422, "invalid_task"),
    ],
)
def test_refused(plane: Plane, agent: Agent, path: str, body: dict[str, Any] | None, status: int, code: str) -> None:
    agent.beat(**FULL)
    answer = plane.operator("POST", f"/api/v1/{path}", body)
    assert (answer.status, answer.code) == (status, code)


def test_a_node_is_deleted_when_it_is_gone_and_empty(quick: Plane) -> None:
    agent = Agent(quick)
    agent.beat(**FULL)
    made = submit(quick, node_id="gpu-a")
    assert quick.operator("DELETE", "/api/v1/nodes/gpu-x").code == "node_not_found"
    assert quick.operator("DELETE", "/api/v1/nodes/gpu-a").code == "node_online"
    wait_until(lambda: task(quick, made["id"])["status"] == "scheduled", "it is placed")
    claimed = quick.call(
        "PUT",
        f"/api/v1/tasks/{made['id']}",
        {
            "node_id": "gpu-a",
            "attempt": 1,
            "claim_token": "token-000001",
            "from_status": "scheduled",
            "status": "running",
        },
        agent.headers,
    )
    assert claimed.status == 200, claimed.raw
    agent.beat(**UNCHANGED, leaving=True)
    wait_until(lambda: state(quick) in ("offline", "lost"), "it left")
    refused = quick.operator("DELETE", "/api/v1/nodes/gpu-a")
    assert (refused.code, refused.body["tasks"]) == ("node_has_tasks", [made["id"]])
    assert quick.operator("DELETE", f"/api/v1/tasks/{made['id']}?force=true").status == 204
    assert quick.operator("DELETE", "/api/v1/nodes/gpu-a").status == 204
    assert quick.operator("GET", "/api/v1/nodes").body == {"nodes": []}


def test_nothing_is_placed_while_the_database_is_known_to_be_put_back(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL, seen_revision=10_000)
    made = submit(plane)
    placed = [agent.beat(**UNCHANGED).body["pending"]["tasks"] for _ in range(20)]
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 2, "two rounds")
    assert set(placed) == {0}
    assert task(plane, made["id"])["status"] == "pending"


def test_cordons_at_once_leave_what_is_stored_in_memory(plane: Plane, agent: Agent) -> None:
    """Two commits reached the memory in the other order: a node stored as cordoned went on getting work."""
    assert agent.beat(**FULL).status == 200
    path = f"/api/v1/nodes/{agent.node_id}"

    def change(number: int) -> None:
        if number % 2:
            assert plane.operator("POST", f"{path}/cordon", {"reason": f"reason {number}"}).status == 200
        else:
            assert plane.operator("POST", f"{path}/uncordon").status == 200

    plane.operator("GET", path)
    for _ in range(6):
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(change, range(16)))
        with plane.parts.db.read() as connection:
            stored = connection.execute(
                sa.select(tables.nodes.c.cordon_since, tables.nodes.c.cordon_reason).where(
                    tables.nodes.c.id == agent.node_id
                )
            ).one()
        shown = plane.operator("GET", path).body["cordon"] or {"since": None, "reason": None}
        assert (shown["since"], shown["reason"]) == tuple(stored)
