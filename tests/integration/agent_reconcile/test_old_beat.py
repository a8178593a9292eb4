"""A heartbeat that was made before an assignment and is heard after it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server_tasks.conftest import start_plane


@pytest.mark.case("FC-003")
@pytest.mark.parametrize("times", [1, 5])
def test_an_old_snapshot_concludes_nothing(tmp_path: Path, times: int) -> None:
    """The server saw the agent idle, and cancelled or gave away work that had only just started."""
    plane, stop = start_plane(tmp_path / "server")
    try:
        node = plane.node("gpu-a", cards=1)
        node.run += 1
        assert node.beat(live_task_ids=[], task_health=[])[0] == 200
        frozen: dict[str, Any] = {"live_task_ids": [], "task_health": [], "gpus": [], "slots": {"total": 1, "used": 0}}
        old = node.seq
        attempt, token = plane.running(node, "t1", gpus={"count": 1, "vendor": "nvidia"})
        uid = plane.task("t1")["uid"]
        held = {"task_id": "t1", "uid": uid, "attempt": attempt, "phase": "running"}
        assert node.beat(live_task_ids=["t1"], task_health=[held])[0] == 200
        before = copy.deepcopy(plane.get("/api/v1/nodes/gpu-a"))
        newest = node.seq
        for _ in range(times):
            node.seq = old - 1  # the next beat that is made counts one more: the old one
            assert node.beat(**frozen)[0] == 200, "it may say that the node lives"
        node.seq = newest
        task = plane.task("t1")
        assert (task["status"], task["phase"], task["attempt"], task["stalled"]) == (
            "running",
            "running",
            attempt,
            False,
        )
        after = plane.get("/api/v1/nodes/gpu-a")
        assert [after[name] for name in ("state", "gpus", "slots")] == [
            before[name] for name in ("state", "gpus", "slots")
        ]
        assert after["last_seen_at"] >= before["last_seen_at"]
        # An older run of the agent is not even heard.
        node.run -= 1
        assert node.beat(**frozen)[0] == 409
        node.run += 1
        # The end of the work itself is still taken.
        status, _ = node.put("t1", attempt, token, "running", "completed", exit_code=0, reason="exited")
        assert status == 200
        assert plane.task("t1")["status"] == "completed"
    finally:
        stop()
