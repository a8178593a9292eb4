"""A task's secrets on the server: who is told them, and where they are written."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runtime.protocol.tasks import HIDDEN
from runtime.server.store.tables import tasks
from tests.integration.server_tasks.conftest import Plane, eventually, start_plane
from tests.lab.markers import Search, new_marker
from tests.lab.simulated_node import SimulatedNode

FIVE = {"id", "uid", "status", "node_id", "attempt"}


class Told:
    """One plane, one task with secrets, and every answer that was given so far."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.named = {"env": new_marker("env"), "password": new_marker("password")}
        self.search = Search(self.named)
        self.spec: dict[str, Any] = {
            "env": {"TOKEN": self.named["env"], "PLAIN": "x"},
            "image": "registry.example/app:1",
            "registry_auth": {"server": "registry.example", "username": "u", "password": self.named["password"]},
        }

    def in_answer(self, answer: tuple[int, Any]) -> set[str]:
        return {hit.secret for hit in self.search.look("answer", json.dumps(answer[1]).encode())}

    def in_files(self) -> set[str]:
        places = ((str(path), path.read_bytes()) for path in self.folder.rglob("*") if path.is_file())
        return {f"{hit.secret} in {Path(hit.where).name}" for hit in self.search.look_at(places)}


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    plane, stop = start_plane(tmp_path / "server")
    yield Told(plane, tmp_path / "server")
    stop()


def everything_else(told: Told, node: SimulatedNode, other: SimulatedNode, task_id: str) -> dict[str, tuple[int, Any]]:
    """All calls that show a task, or what happened to it, but the three that may carry its secrets."""
    plane = told.plane
    path = f"/api/v1/tasks/{task_id}"
    answers = {
        f"{role} {what}": plane.call("GET", what, token=f"{role}-token")
        for role in ("admin", "viewer")
        for what in (
            path,
            "/api/v1/tasks",
            f"{path}/why",
            f"{path}/logs",
            "/api/v1/events?limit=1000",
            "/api/v1/nodes",
            "/openapi.json",
        )
    }
    answers |= {
        "the same body again": plane.call("POST", "/api/v1/tasks", {"id": task_id, "name": task_id, **told.spec}),
        "another body": plane.call("POST", "/api/v1/tasks", {"id": task_id, "name": "other", **told.spec}),
        "agent without a token": node.task(task_id),
        "agent with a wrong token": node.call("GET", path, headers={"X-Claim-Token": "0" * 32}),
        "agent's list": node.call("GET", f"/api/v1/tasks?node_id={node.node_id}&status=scheduled,running,completed"),
        "another node": other.task(task_id),
        "another node's claim": other.put(task_id, 1, "0" * 32, "scheduled", "running"),
        "another reclaim": node.call(
            "POST",
            f"{path}/reclaim",
            {"node_id": node.node_id, "instance_id": node.instance_id, "attempt": 7, "claim_token": "0" * 32},
        ),
        "beat": node.beat(),
    }
    return answers


def test_three_answers_carry_the_secrets_and_no_other(told: Told) -> None:
    plane = told.plane
    node, other = plane.node(), plane.node("gpu-b")
    both = set(told.named)
    created = plane.call("POST", "/api/v1/tasks", {"id": "t1", "name": "t1", "node_id": "gpu-a", **told.spec})
    assert created[0] == 201 and told.in_answer(created) == set()
    assert created[1]["spec"]["env"] == {"TOKEN": HIDDEN, "PLAIN": HIDDEN}
    told.spec["node_id"] = "gpu-a"

    attempt = plane.scheduled(node, "t1")
    before = everything_else(told, node, other, "t1")
    assert {name: found for name, answer in before.items() if (found := told.in_answer(answer))} == {}
    assert before["the same body again"][0] == 200 and before["another body"][1]["code"] == "task_exists"

    # The claim's 200, the 409 that says whose it is, and the read with the claim's token.
    token = secrets.token_hex(16)
    claimed = node.put("t1", attempt, token, "scheduled", "running")
    assert claimed[0] == 200 and told.in_answer(claimed) == both
    again = node.put("t1", attempt, token, "scheduled", "running")
    assert again[0] == 409 and again[1]["claim_token_matches"] is True and told.in_answer(again) == both
    read = node.call("GET", "/api/v1/tasks/t1", headers={"X-Claim-Token": token})
    assert read[0] == 200 and told.in_answer(read) == both

    running = everything_else(told, node, other, "t1")
    running["another claim"] = node.put("t1", attempt, "0" * 32, "scheduled", "running")
    assert {name: found for name, answer in running.items() if (found := told.in_answer(answer))} == {}
    assert {name for name, value in running["another node"][1].items() if value not in (None, [], {}, "")} <= FIVE
    assert set(running["another node"][1]) == FIVE or running["another node"][1].get("spec") is None
    # The token alone is not enough: it is the claim's node and instance that must ask.
    assert told.in_answer(other.call("GET", "/api/v1/tasks/t1", headers={"X-Claim-Token": token})) == set()
    assert told.in_files() == set()

    ended = node.put("t1", attempt, token, "running", "failed", exit_code=1, reason="exited", error="it failed")
    assert ended[0] == 200 and told.in_answer(ended) == set()
    late = node.put("t1", attempt, token, "running", "completed", exit_code=0, reason="exited")
    assert late[0] == 409 and told.in_answer(late) == set()
    read = node.call("GET", "/api/v1/tasks/t1", headers={"X-Claim-Token": token})
    assert told.in_answer(read) == set()
    after = everything_else(told, node, other, "t1")
    assert {name: found for name, answer in after.items() if (found := told.in_answer(answer))} == {}
    assert told.in_files() == set()


def test_another_node_is_told_five_things(told: Told) -> None:
    node, other = told.plane.node(), told.plane.node("gpu-b")
    told.plane.running(node, "t1", node_id="gpu-a", **told.spec)
    status, seen = other.task("t1")
    assert status == 200
    assert {name: value for name, value in seen.items() if name not in FIVE and value} == {}
    assert (seen["id"], seen["status"], seen["node_id"], seen["attempt"]) == ("t1", "running", "gpu-a", 1)


SECRET = "pw-Zk3_97hUQx"


@pytest.mark.parametrize(
    "spec",
    [
        {"env": f"TOKEN={SECRET}"},
        {"env": {"TOKEN": [SECRET]}},
        {"env": {"TOKEN": {"value": SECRET}}},
        {"env": [["TOKEN", SECRET]]},
        {"env": [f"1TOKEN={SECRET}"]},
        {"env": [f"={SECRET}"]},
        {"env": [f"-{SECRET}-/+"]},
        {"env": {"A B": SECRET}},
        {"env": ["A=1", f"A={SECRET}"]},
        {"env": {"TOKEN": f"{SECRET}\x00"}},
        {"environment": {"TOKEN": SECRET}},
        {"envs": [f"TOKEN={SECRET}"]},
        {"registry_auth": SECRET},
        {"registry_auth": f"u:{SECRET}"},
        {"registry_auth": {"server": "r", "username": "u", "password": [SECRET]}},
        {"registry_auth": {"server": "r", "username": "u", "passwd": SECRET}},
        {"registry_auth": {"server": 1, "username": "u", "password": SECRET}},
        {"registry_auth": {"username": "u", "password": SECRET}},
        {"registry_auth": {"auth": SECRET}},
        {"image": 5, "env": {"TOKEN": SECRET}},
        {"gpus": {"count": -1}, "env": {"TOKEN": SECRET}},
    ],
)
def test_a_refused_body_shows_no_secret(told: Told, spec: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """Neither in the answer nor in a log: the body was sent by somebody who made a mistake with a secret in it."""
    status, body = told.plane.call("POST", "/api/v1/tasks", {"id": "t1", "name": "t1", "image": "app:1", **spec})
    assert status in (201, 422)
    assert SECRET not in json.dumps(body)
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err
    assert SECRET not in json.dumps(told.plane.get("/api/v1/events?limit=1000"))


@pytest.mark.parametrize("cut", [1, 20, 60, 100, 135])
def test_a_body_that_breaks_off_is_not_repeated(told: Told, cut: int) -> None:
    raw = json.dumps({"id": "t1", "name": "t1", "image": "app:1", "env": {"TOKEN": SECRET}}).encode()
    status, body = told.plane.call("POST", "/api/v1/tasks", raw=raw[: min(cut, len(raw) - 1)])
    assert (status, body["code"]) == (400, "malformed_json")
    assert SECRET[:6] not in json.dumps(body)


@pytest.mark.parametrize("size", [20, 3000, 40_000], ids=["in the row", "nearly a page", "many pages"])
@pytest.mark.parametrize("way", ["ends", "is cancelled", "is deleted by force"])
def test_what_was_sealed_is_gone_from_the_files_after_the_end(told: Told, size: int, way: str) -> None:
    """Neither the row, nor a free page, nor SQLite's log keeps it."""
    plane = told.plane
    node = plane.node()
    pieces = [secrets.token_hex(size // 2) for _ in range(3)]
    for number, piece in enumerate(pieces):  # of three neighbours one ends: pages are shared, split and freed
        plane.create(f"t{number}", env={"TOKEN": piece})
    if way != "is cancelled":
        attempt, token = plane.claimed(node, "t1")
    (row,) = plane.rows(sa.select(tasks).where(tasks.c.id == "t1"))
    sealed = bytes(row["secrets"])
    # Sealing is authenticated encryption: a stretch in the middle of it is as unique as the whole.
    traces = {"begin": sealed[20:60], "middle": sealed[len(sealed) // 2 :][:40], "end": sealed[-40:]}

    def found() -> set[str]:
        data = b"".join(path.read_bytes() for path in sorted(told.folder.glob("heterofleet.db*")))
        return {name for name, trace in traces.items() if trace in data}

    assert found() == set(traces)
    if way == "ends":
        assert node.put("t1", attempt, token, "running", "completed", exit_code=0, reason="exited")[0] == 200
    elif way == "is cancelled":
        assert plane.call("POST", "/api/v1/tasks/t1/stop")[0] == 202
    else:
        assert plane.call("DELETE", "/api/v1/tasks/t1?force=true")[0] == 204
    assert all(bytes(row["secrets"] or b"") != sealed for row in plane.rows(sa.select(tasks)))
    eventually("the log is cut", plane.parts.db.forget_wiped)  # not while the server's own rounds read
    assert found() == set()
    # The neighbours still have theirs.
    assert [
        row["secrets"] is not None for row in plane.rows(sa.select(tasks).order_by(tasks.c.id)) if row["id"] != "t1"
    ] == [
        True,
        True,
    ]


def test_a_reader_delays_the_wiping_and_does_not_prevent_it(told: Told) -> None:
    plane = told.plane
    plane.create("t1", env={"TOKEN": "x" * 30})
    with plane.parts.db.read() as connection:
        connection.execute(sa.select(tasks.c.id)).all()
        assert plane.call("POST", "/api/v1/tasks/t1/stop")[0] == 202
        assert plane.parts.db.forget_wiped() is False
    eventually("the log is cut", plane.parts.db.forget_wiped)
