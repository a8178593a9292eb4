"""Cards that wait for their node's word come free by it, whatever else happens in the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from runtime.server.store import tables
from tests.integration.server_core.plane import FULL, Agent, Plane, running, wait_until

IDLE: dict[str, Any] = {"task_health": [], "live_task_ids": []}


def allocated(plane: Plane) -> list[str]:
    with plane.parts.db.read() as connection:
        return list(connection.execute(sa.select(tables.gpu_allocations.c.gpu_uuid)).scalars())


def hold_a_card(plane: Plane, agent: Agent) -> str:
    """A task of the node, claimed; its id."""
    made = plane.operator("POST", "/api/v1/tasks", {"name": "n", "image": "one:1", "gpus": {"count": 1}}).body
    path = f"/api/v1/tasks/{made['id']}"
    wait_until(lambda: plane.operator("GET", path).body["status"] == "scheduled", "the task is scheduled")
    claim = {"node_id": agent.node_id, "attempt": 1, "claim_token": "token-0001", "from_status": "scheduled"}
    assert plane.call("PUT", path, {**claim, "status": "running"}, agent.headers).status == 200
    return str(made["id"])


def idle_until_free(plane: Plane, agent: Agent) -> None:
    def free() -> bool:
        assert agent.beat(**FULL, **IDLE).status == 200
        return not allocated(plane)

    wait_until(free, "the node's word frees the card")


def test_a_card_comes_free_in_a_fleet_where_nothing_else_happens(plane: Plane) -> None:
    """The list of what waits was read after the first change of a phase only, so a quiet fleet lost the card."""
    agent = Agent(plane)
    assert agent.beat(**FULL, **IDLE).status == 200
    task_id = hold_a_card(plane, agent)
    assert plane.operator("DELETE", f"/api/v1/tasks/{task_id}?force=true").status == 204
    assert allocated(plane)
    idle_until_free(plane, agent)


def test_a_card_that_waits_over_a_restart_comes_free(tmp_path: Path) -> None:
    with running(tmp_path) as plane:
        agent = Agent(plane)
        assert agent.beat(**FULL, **IDLE).status == 200
        task_id = hold_a_card(plane, agent)
        assert plane.operator("DELETE", f"/api/v1/tasks/{task_id}?force=true").status == 204
    with running(tmp_path) as plane:
        agent.plane = plane
        assert allocated(plane)
        idle_until_free(plane, agent)
