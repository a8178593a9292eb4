"""One node says what the database cannot hold: everybody else's word is stored all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runtime.server.services.flush import flush
from runtime.server.store import tables
from tests.integration.server_core.plane import FULL, Agent, Plane, running, wait_until


def stored(plane: Plane, node_id: str) -> Any:
    with plane.parts.db.read() as connection:
        return connection.execute(sa.select(tables.nodes).where(tables.nodes.c.id == node_id)).one()


def test_a_nul_in_what_a_node_says_is_stored_as_a_mark(tmp_path: Path, database_url: str) -> None:
    """PostgreSQL takes no NUL in a text: the flush of the whole fleet failed, again every second."""
    with running(tmp_path, database_url=database_url) as plane:
        odd = Agent(plane, "gpu-odd", "instance-odd", boot_id="boot-0001", fingerprint="f\0p")
        plain = Agent(plane, "gpu-plain", "instance-plain")
        fabrics = [{"name": "ib\0a", "hcas": ["mlx\0"]}]
        assert odd.beat(**{**FULL, "fabrics": fabrics, "digests": {**FULL["digests"], "fabrics": "1"}}).status == 200
        assert odd.beat(**{**FULL, "fabrics": [], "digests": {**FULL["digests"], "fabrics": "2"}}).status == 200
        broken = {"uuid": "GPU\0", "index": 0, "reason": "lost\0"}
        for _ in range(4):
            assert odd.beat(**FULL, gpu_collect_failures=[broken], gpu_collector_error="\0").status == 200
            assert plain.beat(**FULL).status == 200
        wait_until(lambda: stored(plane, "gpu-plain").seq == plain.seq, "the plain node is written")
        wait_until(lambda: stored(plane, "gpu-odd").seq == odd.seq, "the odd node is written")
        assert plane.operator("GET", "/api/v1/events?limit=1000").status == 200
        assert plane.operator("GET", "/api/v1/nodes/gpu-odd").status == 200


def test_what_the_database_refuses_keeps_nobody_else_waiting(plane: Plane) -> None:
    agents = [Agent(plane, f"gpu-{number}", f"instance-{number:04}") for number in range(9)]
    plane.parts.background.stop()  # type: ignore[union-attr]
    plane.parts.background = None
    for agent in agents:
        assert agent.beat(**FULL).status == 200
    held = plane.parts.presence.held("gpu-4")
    assert held is not None
    held.boot_id = 2**70  # type: ignore[assignment]  # no database of ours has a column for it
    flush(plane.parts.db, plane.parts.presence)
    assert [stored(plane, agent.node_id).facts is not None for agent in agents] == [
        agent.node_id != "gpu-4" for agent in agents
    ]
    assert not plane.parts.presence.backlog


@pytest.mark.parametrize("attempt", [2**70, -(2**70)])
def test_an_impossible_attempt_costs_no_other_node_its_phases(plane: Plane, attempt: int) -> None:
    task = plane.operator("POST", "/api/v1/tasks", {"name": "n", "image": "one:1", "node_id": "gpu-plain"}).body
    odd, plain = Agent(plane, "gpu-odd", "instance-odd"), Agent(plane, "gpu-plain", "instance-plain")
    for agent in (odd, plain):
        assert agent.beat(**FULL, task_health=[]).status == 200
    entry = {"task_id": task["id"], "uid": task["uid"], "phase": "running"}
    assert odd.beat(**FULL, task_health=[{**entry, "attempt": attempt}]).status in (200, 422)
    assert plain.beat(**FULL, task_health=[{**entry, "attempt": 1}]).status == 200
    told = wait_until(lambda: plane.events("task_phase"), "the phase is told")
    assert [(event["node_id"], event["code"]) for event in told if event["node_id"] == "gpu-plain"]
