"""What docs/operations.md says under "Threat model": who can do what with what they stole, today."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from runtime.server.store.tables import attempts, tasks
from runtime.server.store.vault import Vault
from tests.integration.server_tasks.conftest import KEY, Plane, start_plane
from tests.lab.simulated_node import SimulatedNode

SECRET = "swordfish-of-the-task"
API = "/api/v1"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made, stop = start_plane(tmp_path / "server")
    yield made
    stop()


@pytest.fixture
def victim(plane: Plane) -> SimulatedNode:
    """A node with a running task that has a secret, and one that waits for it."""
    node = plane.node("gpu-a")
    plane.running(node, "t1", env={"TOKEN": SECRET})
    plane.create("t2", env={"TOKEN": SECRET}, node_id="gpu-a")
    plane.scheduled(node, "t2")
    return node


def thief(plane: Plane, node_id: str, **more: object) -> SimulatedNode:
    """Somebody with the system key and nothing else."""
    return SimulatedNode(plane.url, KEY, node_id, **more)  # type: ignore[arg-type]


def test_the_system_key_alone_does_not_speak_for_a_node_that_is_there(plane: Plane, victim: SimulatedNode) -> None:
    someone = thief(plane, "gpu-a")
    assert someone.instance_id != victim.instance_id
    status, answer = someone.beat()
    assert (status, answer["code"]) == (409, "node_id_in_use")
    assert victim.instance_id not in json.dumps(answer), "the refusal gives away what is missing"
    calls = (
        ("GET", f"{API}/tasks?node_id=gpu-a&status=scheduled", None),
        ("GET", f"{API}/tasks/t1", None),
        ("GET", f"{API}/agent/pending?node_id=gpu-a", None),
        ("GET", f"{API}/agent/image-requests?node_id=gpu-a", None),
    )
    for method, path, body in calls:
        status, answer = someone.call(method, path, body)
        assert (status, answer["code"]) == (403, "instance_mismatch"), path
    assert someone.put("t2", 1, "0" * 32, "scheduled", "running")[1]["code"] == "instance_mismatch"
    assert victim.beat()[0] == 200


def test_the_system_key_alone_does_nothing_that_operators_do(plane: Plane, victim: SimulatedNode) -> None:
    someone = thief(plane, "gpu-z")
    assert someone.beat()[0] == 200
    for method, path in (
        ("POST", "tasks"),
        ("DELETE", "tasks/t1"),
        ("POST", "tasks/t1/stop"),
        ("GET", "tasks/t1/logs"),
        ("GET", "tasks/t1/why"),
        ("GET", "nodes"),
        ("GET", "events"),
        ("POST", "nodes/gpu-a/release"),
        ("POST", "image-requests"),
    ):
        status, answer = someone.call(method, f"{API}/{path}", None if method == "GET" else {})
        assert (status, answer["code"]) == (403, "agent_key_not_allowed"), path


def test_the_system_key_makes_a_node_and_gets_the_tasks_that_are_placed_there(
    plane: Plane, victim: SimulatedNode
) -> None:
    """This is what a stolen key can do, and why it must be changed at once."""
    someone = thief(plane, "gpu-z")
    assert someone.beat()[0] == 200
    _, token = plane.running(someone, "t3", node_id="gpu-z", env={"TOKEN": SECRET})
    status, task = someone.call("GET", f"{API}/tasks/t3", headers={"X-Claim-Token": token})
    assert (status, task["spec"]["env"]) == (200, {"TOKEN": SECRET})
    # Of the others' tasks it learns five things, when it knows an id.
    _, other = someone.task("t1")
    assert {name for name, value in other.items() if value} == {"id", "uid", "status", "node_id", "attempt"}
    assert someone.put("t1", 1, token, "running", "failed")[0] == 409
    assert plane.task("t1")["status"] == "running"


def test_the_key_with_a_nodes_instance_id_speaks_for_that_node(plane: Plane, victim: SimulatedNode) -> None:
    """Operators see instance ids, viewers too: a viewer with the system key is as good as any node."""
    status, seen = plane.call("GET", f"{API}/nodes/gpu-a", token="viewer-token")
    assert status == 200 and seen["instance_id"] == victim.instance_id
    someone = thief(plane, "gpu-a")
    someone.instance_id = seen["instance_id"]
    status, task = someone.put("t2", 1, secrets.token_hex(16), "scheduled", "running")
    assert status == 200 and task["spec"]["env"] == {"TOKEN": SECRET}
    # What the node has claimed itself stays closed without the claim's token.
    assert SECRET not in json.dumps(someone.task("t1"))


def test_an_admin_sees_no_value_of_anybody(plane: Plane, victim: SimulatedNode) -> None:
    for path in ("tasks", "tasks/t1", "tasks/t2", "events?limit=1000", "nodes"):
        assert SECRET not in json.dumps(plane.get(f"{API}/{path}"))


def test_the_database_alone_opens_nothing_sealed_and_holds_the_claims_tokens(
    plane: Plane, victim: SimulatedNode, tmp_path: Path
) -> None:
    stored = b"".join(path.read_bytes() for path in (tmp_path / "server").glob("heterofleet.db*"))
    assert SECRET.encode() not in stored and b"admin-token" not in stored and KEY.encode() not in stored
    (row,) = plane.rows(sa.select(tasks).where(tasks.c.id == "t1"))
    # With the system key and a way to the server, a claim's token and its instance are as good as the node.
    someone = thief(plane, "gpu-a")
    someone.instance_id = row["claim_instance"]
    _, task = someone.call("GET", f"{API}/tasks/t1", headers={"X-Claim-Token": row["claim_token"]})
    assert task["spec"]["env"] == {"TOKEN": SECRET}
    assert plane.rows(sa.select(attempts))[0]["claim_token"] == row["claim_token"]
    # With secret.key beside it, what has not ended is open without the server.
    opened = Vault(tmp_path / "server" / "secret.key").open(row["secrets"])
    assert opened["env"] == {"TOKEN": SECRET}
