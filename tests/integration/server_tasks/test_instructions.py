"""Instructions over HTTP: made, pulled, claimed once, reported, cancelled, out of time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runtime.protocol.instructions import Channel
from runtime.protocol.times import from_wire, now, to_wire
from runtime.server.services import instructions as service
from runtime.server.store.tables import instructions
from tests.integration.server_tasks.conftest import Plane

REQUESTS: dict[str, dict[str, Any]] = {
    "slice": {
        "node_id": "gpu-a",
        "vendor": "nvidia-mig",
        "op": "create",
        "gpu_uuid": "GPU-gpu-a-0",
        "profiles": [{"name": "1g.10gb", "count": 2}],
    },
    "image": {"node_id": "gpu-a", "op": "pull", "image": "app:1", "timeout_s": 60},
    "file": {"node_id": "gpu-a", "op": "tail", "path": "/data/x", "lines": 5},
}


def update(node: Any, request_id: str, channel: str, token: str, source: str, target: str, **more: Any) -> Any:
    body = {"node_id": "gpu-a", "claim_token": token, "from_status": source, "status": target, **more}
    return node.call("PUT", f"/api/v1/agent/{channel}-requests/{request_id}", body)


@pytest.mark.parametrize("channel", list(REQUESTS))
def test_an_instruction_goes_its_way(any_plane: Plane, channel: str) -> None:
    node = any_plane.node(cards=1)
    status, made = any_plane.call("POST", f"/api/v1/{channel}-requests", REQUESTS[channel])
    assert (status, made["status"], made["channel"]) == (201, "pending", channel)
    assert any_plane.headers["Location"] == f"/api/v1/{channel}-requests/{made['id']}"
    plural = {"slice": "slices", "image": "images", "file": "files"}[channel]
    assert node.beat()[1]["pending"][plural] == 1
    pulled = node.call("GET", f"/api/v1/agent/{channel}-requests?node_id=gpu-a&status=pending&limit=5")[1]
    assert pulled["requests"] == [made]
    status, claimed = update(node, made["id"], channel, "token-1234", "pending", "running")
    assert (status, claimed["status"]) == (200, "running")
    status, refusal = update(node, made["id"], channel, "token-1234", "pending", "running")
    assert (status, refusal["claim_token_matches"], refusal["request_status"]) == (409, True, "running")
    status, refusal = update(node, made["id"], channel, "other-token", "running", "failed")
    assert (status, refusal["claim_token_matches"]) == (409, False)
    assert node.beat()[1]["pending"][plural] == 0
    status, done = update(node, made["id"], channel, "token-1234", "running", "succeeded", result={"a": [1]})
    assert (status, done["status"], done["result"]) == (200, "succeeded", {"a": [1]})
    assert any_plane.get(f"/api/v1/{channel}-requests/{made['id']}") == done
    status, refusal = update(node, made["id"], channel, "token-1234", "running", "failed", error="late")
    assert status == 409
    assert any_plane.get(f"/api/v1/{channel}-requests/{made['id']}") == done
    told = [event["code"] for event in any_plane.events(kind="instruction_state")]
    assert told == ["pending", "running", "succeeded"]


def test_one_of_many_claims_wins(any_plane: Plane) -> None:
    node = any_plane.node()
    _, made = any_plane.call("POST", "/api/v1/image-requests", REQUESTS["image"])
    with ThreadPoolExecutor(50) as pool:
        answers = list(
            pool.map(
                lambda number: update(node, made["id"], "image", f"token-{number:04}", "pending", "running")[0],
                range(50),
            )
        )
    assert sorted(answers) == [200] + [409] * 49


def test_only_what_waits_can_be_cancelled(plane: Plane) -> None:
    node = plane.node()
    _, made = plane.call("POST", "/api/v1/file-requests", REQUESTS["file"])
    for _ in range(2):
        status, body = plane.call("POST", f"/api/v1/file-requests/{made['id']}/cancel")
        assert (status, body["status"]) == (202, "cancelled")
    status, refusal = update(node, made["id"], "file", "token-1234", "pending", "running")
    assert (status, refusal["request_status"]) == (409, "cancelled")
    _, other = plane.call("POST", "/api/v1/file-requests", REQUESTS["file"])
    update(node, other["id"], "file", "token-1234", "pending", "running")
    status, refusal = plane.call("POST", f"/api/v1/file-requests/{other['id']}/cancel")
    assert (status, refusal["code"]) == (409, "illegal_transition")


@pytest.mark.parametrize(
    ("source", "target", "status"),
    [("pending", "succeeded", 422), ("succeeded", "running", 422), ("pending", "cancelled", 409)],
)
def test_changes_that_nobody_makes(plane: Plane, source: str, target: str, status: int) -> None:
    node = plane.node()
    _, made = plane.call("POST", "/api/v1/image-requests", REQUESTS["image"])
    got, refusal = update(node, made["id"], "image", "token-1234", source, target)
    assert (got, refusal["code"]) == (status, "illegal_transition")


@pytest.mark.case("FC-004")
def test_a_claimed_request_without_a_report_is_shown_as_overdue(plane: Plane) -> None:
    """What was claimed and never reported must not be lost silently."""
    node = plane.node()
    _, made = plane.call("POST", "/api/v1/image-requests", REQUESTS["image"])
    update(node, made["id"], "image", "token-1234", "pending", "running")
    with plane.parts.db.read() as connection:
        for seconds, overdue in ((119, False), (121, True)):
            moment = now() + timedelta(seconds=seconds)
            shown = service.get(connection, Channel.IMAGE, made["id"], moment)
            assert (shown.status.value, shown.overdue) == ("running", overdue)


@pytest.mark.parametrize(("channel", "lives_s"), [("slice", 600), ("image", 86400), ("file", 86400)])
def test_what_nobody_claims_runs_out_of_time(any_plane: Plane, channel: str, lives_s: int) -> None:
    node = any_plane.node(cards=1)
    _, made = any_plane.call("POST", f"/api/v1/{channel}-requests", REQUESTS[channel])
    past = to_wire(now() - timedelta(seconds=1))
    (row,) = any_plane.rows(sa.select(instructions))
    lives = from_wire(row["expires_at"]) - from_wire(row["created_at"])
    assert lives == timedelta(seconds=lives_s)
    any_plane.parts.db.write(lambda tx: tx.execute(sa.update(instructions).values(expires_at=past)))
    assert any_plane.get(f"/api/v1/{channel}-requests/{made['id']}")["status"] == "expired"
    assert node.call("GET", f"/api/v1/agent/{channel}-requests?status=pending")[1]["requests"] == []
    assert update(node, made["id"], channel, "token-1234", "pending", "running")[0] == 409
    assert any_plane.parts.db.write(lambda tx: service.expire(tx, now())) == 1
    (row,) = any_plane.rows(sa.select(instructions))
    assert row["status"] == "expired"
    assert node.beat()[1]["pending"] == {"tasks": 0, "slices": 0, "images": 0, "files": 0}


@pytest.mark.parametrize("channel", list(REQUESTS))
def test_requests_that_make_no_sense_are_refused(plane: Plane, channel: str) -> None:
    status, refusal = plane.call("POST", f"/api/v1/{channel}-requests", REQUESTS[channel])
    assert (status, refusal["code"]) == (404, "node_not_found")
    plane.node()
    status, refusal = plane.call("POST", f"/api/v1/{channel}-requests", {**REQUESTS[channel], "op": "eat"})
    assert (status, refusal["code"], refusal["errors"][0]["path"]) == (422, "invalid_task", "op")
    odd = {"slice": ("gpu_uuid", "GPU-9"), "image": ("image", "A"), "file": ("path", "x")}[channel]
    status, refusal = plane.call("POST", f"/api/v1/{channel}-requests", {**REQUESTS[channel], odd[0]: odd[1]})
    assert (status, refusal["code"], refusal["errors"][0]["path"]) == (422, "invalid_task", odd[0])
    for path in ("x", "%00"):
        status, refusal = plane.call("GET", f"/api/v1/{channel}-requests/{path}")
        assert (status, refusal["code"]) == (404, "request_not_found")
    for query in ("status=x", "limit=0", "node_id=A"):
        assert plane.call("GET", f"/api/v1/{channel}-requests?{query}")[0] == 400
