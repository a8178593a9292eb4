"""What is over goes when it is old; what was counted of it stays."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from runtime.protocol.times import now
from runtime.server.services import retention
from runtime.server.store.tables import instructions, tokens
from tests.integration.server_tasks.conftest import Plane, start_plane

IMAGE = {"node_id": "gpu-a", "op": "check", "image": "app:1"}


def ends(plane: Plane) -> dict[str, float]:
    """Reason -> what /metrics says of it."""
    parts = plane.parts
    text = parts.metrics.render(parts.presence, braked=False, rolled_back=False)[0].decode()
    assert "# TYPE heterofleet_task_ends_total counter" in text
    lines = [line for line in text.splitlines() if line.startswith("heterofleet_task_ends_total{")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


def in_a_year(plane: Plane) -> int:
    return retention.prune(plane.parts.db, now() + timedelta(days=365), 30)


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "expired", None])
def test_an_old_instruction_goes_once_it_is_over(any_plane: Plane, end: str | None) -> None:
    node = any_plane.node()
    _, made = any_plane.call("POST", "/api/v1/image-requests", IMAGE)
    path, body = f"/api/v1/agent/image-requests/{made['id']}", {"node_id": "gpu-a", "claim_token": "token-1234"}
    if end == "cancelled":
        any_plane.call("POST", f"/api/v1/image-requests/{made['id']}/cancel")
    elif end == "expired":
        values = {"status": "expired", "finished_at": made["created_at"]}
        any_plane.parts.db.write(lambda tx: tx.execute(sa.update(instructions).values(**values)))
    else:
        assert node.call("PUT", path, {**body, "from_status": "pending", "status": "running"})[0] == 200
        if end is not None:
            assert node.call("PUT", path, {**body, "from_status": "running", "status": end})[0] == 200
    assert retention.prune(any_plane.parts.db, now(), 30) == 0
    in_a_year(any_plane)
    left = [] if end is not None else ["running"]
    assert [row["status"] for row in any_plane.rows(sa.select(instructions))] == left


def test_ends_are_counted_for_good(any_plane: Plane) -> None:
    node = any_plane.node()
    assert ends(any_plane) == {}
    for task_id, status, facts in (
        ("t1", "completed", {"exit_code": 0}),
        ("t2", "completed", {"exit_code": 0}),
        ("t3", "failed", {"exit_code": 1}),
        ("t4", "failed", {"reason": "start_failed"}),
    ):
        attempt, token = any_plane.running(node, task_id)
        assert node.put(task_id, attempt, token, "running", status, **facts)[0] == 200
    any_plane.create("t5", gpus={"count": 9})
    assert any_plane.call("POST", "/api/v1/tasks/t5/stop")[0] == 202, "never placed: it has no reason"
    counted = {"exited": 3, "start_failed": 1}
    assert ends(any_plane) == counted
    assert any_plane.call("DELETE", "/api/v1/tasks/t1")[0] == 204
    assert ends(any_plane) == counted
    in_a_year(any_plane)
    assert any_plane.get("/api/v1/tasks")["tasks"] == []
    assert ends(any_plane) == counted


def test_the_count_goes_on_after_a_restart(tmp_path: Path) -> None:
    for number in (1, 2):
        plane, stop = start_plane(tmp_path / "server")
        try:
            node = plane.node(f"gpu-{number}")
            attempt, token = plane.running(node, f"t{number}", node_id=f"gpu-{number}")
            assert node.put(f"t{number}", attempt, token, "running", "completed", exit_code=0)[0] == 200
            assert ends(plane) == {"exited": number}
            plane.parts.db.write(lambda tx: tx.execute(sa.delete(tokens)))  # the next start adds them again
        finally:
            stop()
