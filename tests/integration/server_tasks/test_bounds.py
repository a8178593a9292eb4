"""What one caller may ask for or leave behind has an end."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from runtime.protocol.tasks import LOG_KEEP_BYTES
from runtime.server.store.tables import task_logs
from tests.integration.server_tasks.conftest import Plane


def test_a_log_holds_the_text_of_its_range_and_no_more(plane: Plane) -> None:
    """What is kept is counted by positions: a chunk "from 0 to 1" with megabytes of text was never let go."""
    node = plane.node()
    attempt, token = plane.running(node, "t1")

    def send(start: int, end: int, data: str) -> tuple[int, Any]:
        chunk = {"attempt": attempt, "claim_token": token, "from": start, "to": end, "data": data}
        return node.call("POST", "/api/v1/tasks/t1/logs", chunk)

    for start, end, data in ((0, 1, "x" * 1000), (0, 0, "x"), (0, 4 * LOG_KEEP_BYTES, "x" * 4 * LOG_KEEP_BYTES)):
        status, body = send(start, end, data)
        assert (status, body["code"]) == (400, "bad_parameter")
    assert send(0, 2, "\ufffd\ufffd")[0] == 204, "bytes that are no text take more room than they had"
    assert send(2, 4, "\u00fc")[0] == 204
    held = sum(len(row["data"]) for row in plane.rows(sa.select(task_logs.c.data)))
    assert held == 3
    assert plane.get("/api/v1/tasks/t1/logs")["to"] == 4


def test_thousands_of_labels_are_no_fault_of_the_database(any_plane: Plane) -> None:
    """They became one statement that the database could not take, and looked like a database that is busy."""
    words = "&".join(f"label=name{number}=value" for number in range(3000))
    status, body = any_plane.call("GET", f"/api/v1/tasks?{words}")
    assert (status, body["code"]) == (400, "bad_parameter")
    assert any_plane.call("GET", "/api/v1/tasks?label=a=b&label=c=d")[0] == 200
