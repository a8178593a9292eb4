"""Who holds a node id, against a real server on both databases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from runtime.protocol.states import Status
from runtime.server.store import tables
from tests.integration.server_core.plane import FULL, OF_A_COPY, UNCHANGED, Agent, Plane, running, wait_until

SECOND = "22222222-aaaa-bbbb-cccc-000000000002"


@pytest.fixture
def plane(tmp_path: Path, database_url: str) -> Iterator[Plane]:
    with running(tmp_path, database_url=database_url) as made:
        yield made


def bound(plane: Plane) -> dict[str, str | None]:
    with plane.parts.db.read() as connection:
        return {row.id: row.instance_id for row in connection.execute(sa.select(tables.nodes))}


def silence(plane: Plane, node_id: str, seconds: float) -> None:
    """As if the node had been heard last that long ago."""
    held = plane.parts.presence.held(node_id)
    assert held is not None
    assert held.heard_at is not None
    plane.parts.presence.started_at -= seconds
    held.heard_at -= seconds
    wait_until(lambda: not plane.parts.presence.backlog, "what was heard is written")
    with plane.parts.db.engine.begin() as connection:
        connection.execute(sa.update(tables.nodes).values(last_seen_at="2020-01-01T00:00:00.000Z"))


def give_claim(plane: Plane, node_id: str) -> None:
    made = plane.operator(
        "POST", "/api/v1/tasks", {"name": "t", "image": "registry/one:1", "node_id": node_id, "command": ["true"]}
    )
    assert made.status == 201, made.raw
    with plane.parts.db.engine.begin() as connection:
        connection.execute(
            sa.update(tables.tasks).values(
                status=Status.RUNNING.value,
                node_id=node_id,
                claim_token="token-0001",
                claim_instance=bound(plane)[node_id],
            )
        )


def test_the_binding_is_stored_before_the_first_answer(plane: Plane, agent: Agent) -> None:
    assert agent.beat(**FULL).status == 200
    assert bound(plane) == {"gpu-a": agent.instance_id}


def test_another_instance_is_refused_while_the_holder_speaks(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    other = Agent(plane, instance_id=SECOND, fingerprint="machine-2")
    answer = other.beat(**FULL)
    assert (answer.status, answer.code) == (409, "node_id_in_use")
    assert bound(plane) == {"gpu-a": agent.instance_id}
    assert agent.beat(**UNCHANGED).body["send_full"] == []


def test_it_takes_over_once_the_holder_has_said_leaving(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL, leaving=True)
    other = Agent(plane, instance_id=SECOND, fingerprint="machine-2")
    answer = other.beat(**UNCHANGED)
    assert answer.status == 200
    assert sorted(answer.body["send_full"]) == ["gpus", "host", "images"], "another instance's facts are not its own"
    assert bound(plane) == {"gpu-a": SECOND}
    assert len(plane.events("node_replaced")) == 1
    assert agent.beat(**FULL).code == "node_id_in_use"


def test_a_different_machine_waits_for_the_operators_release(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    give_claim(plane, "gpu-a")
    silence(plane, "gpu-a", 3600)
    other = Agent(plane, instance_id=SECOND, fingerprint="machine-2")
    refused = other.beat(**FULL)
    assert (refused.status, refused.code) == (409, "node_id_in_use")
    assert refused.body["holder"]["hostname"] == "host-a"
    same_machine = Agent(plane, instance_id="33333333-aaaa", fingerprint=agent.fingerprint)
    assert same_machine.beat(**FULL).status == 200


def test_release_frees_the_node_id(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    assert plane.operator("POST", "/api/v1/nodes/gpu-a/release").code == "node_online"
    agent.beat(**FULL, leaving=True)
    wait_until(lambda: plane.operator("GET", "/api/v1/nodes/gpu-a").body["state"] == "offline", "it is offline")
    assert plane.operator("POST", "/api/v1/nodes/gpu-a/release").status == 200
    assert bound(plane) == {"gpu-a": None}
    other = Agent(plane, instance_id=SECOND, fingerprint="machine-2")
    assert other.beat(**FULL).status == 200


def test_a_run_that_is_over_is_told_the_known_one(plane: Plane, agent: Agent) -> None:
    agent.run = 7
    agent.beat(**FULL)
    agent.run = 3
    answer = agent.beat(**FULL)
    assert (answer.status, answer.code, answer.body["known_run"]) == (409, "stale_run", 7)
    agent.run = 8
    assert agent.beat(**FULL).status == 200


def test_the_later_of_two_copies_is_refused(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    copy = Agent(plane, run=2, boot_id="boot-0002")
    assert copy.beat(**FULL).status == 200, "it looks like a reboot"
    assert agent.beat(**FULL).status == 200, "a boot id never comes back after a reboot: this one was here first"
    answer = copy.beat(**FULL)
    assert (answer.status, answer.code) == (409, "instance_cloned")
    assert agent.beat(**UNCHANGED).status == 200


def test_the_cards_of_a_copy_do_not_stay_with_the_node(plane: Plane, agent: Agent) -> None:
    """What happened: the node showed four cards, two of them lost that it had never had."""
    agent.beat(**FULL)
    copy = Agent(plane, instance_id=agent.instance_id, boot_id="boot-of-the-copy", run=2)
    for _ in range(4):
        assert copy.beat(**OF_A_COPY).status == 200
    assert {card["uuid"] for card in plane.operator("GET", "/api/v1/nodes/gpu-a").body["gpus"]} == {
        "GPU-a",
        "GPU-b",
        "GPU-x",
    }
    answer = agent.beat(**UNCHANGED)
    assert (answer.status, sorted(answer.body["send_full"])) == (200, ["gpus", "host", "images"])
    for _ in range(4):
        agent.beat(**FULL, gpu_detection=OF_A_COPY["gpu_detection"])
    assert {(card["uuid"], card["health"]) for card in plane.operator("GET", "/api/v1/nodes/gpu-a").body["gpus"]} == {
        ("GPU-a", "ok"),
        ("GPU-b", "ok"),
    }


@pytest.mark.case("FC-013")
def test_a_renamed_host_is_the_same_node(plane: Plane, agent: Agent) -> None:
    """A rename made a second node while the first stayed for ever."""
    agent.beat(**FULL)
    agent.run += 1
    agent.beat(**{**FULL, "host": {"hostname": "gpu-b"}, "digests": {**FULL["digests"], "host": "h2"}})
    nodes = plane.operator("GET", "/api/v1/nodes").body["nodes"]
    assert [(node["id"], node["hostname"]) for node in nodes] == [("gpu-a", "gpu-b")]


def test_a_node_id_that_was_changed_leaves_the_old_one(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    moved = Agent(plane, node_id="gpu-new")
    assert moved.beat(**FULL).status == 200
    assert bound(plane) == {"gpu-a": None, "gpu-new": agent.instance_id}


def test_an_identity_outlives_the_server(tmp_path: Path, database_url: str) -> None:
    with running(tmp_path, database_url=database_url) as plane:
        Agent(plane).beat(**FULL)
    with running(tmp_path, database_url=database_url) as plane:
        other = Agent(plane, instance_id=SECOND, fingerprint="machine-2")
        # The holder had no chance to speak since the start.
        assert other.beat(**FULL).code == "node_id_in_use"
        assert Agent(plane, seq=5).beat(**UNCHANGED).status == 200


@pytest.mark.parametrize("jump", [-3600.0, 3600.0, 86400.0 * 400])
def test_a_step_of_the_servers_clock_proves_no_silence(
    plane: Plane, agent: Agent, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    agent.beat(**FULL)
    give_claim(plane, "gpu-a")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    same = Agent(plane, instance_id=SECOND, fingerprint=agent.fingerprint)
    assert same.beat(**FULL).code == "node_id_in_use", "it was heard a moment ago"
    assert agent.beat(**UNCHANGED).status == 200
    held = plane.parts.presence.held("gpu-a")
    assert held is not None and held.heard_at is not None
    plane.parts.presence.started_at -= 3600
    held.heard_at -= 3600
    assert same.beat(**FULL).status == 200, "the silence is as long as it is"


def test_a_nodes_own_clock_decides_nothing(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL, leaving=True)
    other = Agent(plane, instance_id=SECOND, fingerprint="machine-2")
    assert other.beat(**{**FULL, "sent_at": "1970-01-01T00:00:00.000Z"}).status == 200
    assert agent.beat(**{**FULL, "sent_at": "2099-01-01T00:00:00.000Z"}).code == "node_id_in_use"


def test_which_boot_is_the_copy_is_known_over_a_restart(tmp_path: Path, database_url: str) -> None:
    """It was kept in memory: after a restart the original was taken for the copy of its copy."""
    with running(tmp_path, database_url=database_url) as plane:
        Agent(plane).beat(**FULL)
        assert Agent(plane, run=2, boot_id="boot-0002").beat(**FULL).status == 200
    with running(tmp_path, database_url=database_url) as plane:
        assert Agent(plane, seq=7).beat(**FULL).status == 200, "a boot that was heard before is no new one"
        copy = Agent(plane, run=2, seq=9, boot_id="boot-0002")
        assert copy.beat(**FULL).code == "instance_cloned"
    with running(tmp_path, database_url=database_url) as plane:
        assert copy.plane is not plane
        copy.plane = plane
        assert copy.beat(**FULL).code == "instance_cloned", "also the first that is heard after a restart"
        assert Agent(plane, seq=20).beat(**FULL).status == 200
        assert [event["code"] for event in plane.events("node_state") if event["code"] == "instance_cloned"] == [
            "instance_cloned"
        ]


def test_claims_of_a_former_holder_keep_nobody_from_the_name(plane: Plane, agent: Agent) -> None:
    """After a release the first machine was kept from its name by its own claims."""
    agent.beat(**FULL)
    give_claim(plane, "gpu-a")
    agent.beat(**FULL, leaving=True)
    wait_until(lambda: plane.operator("GET", "/api/v1/nodes/gpu-a").body["state"] == "offline", "it is offline")
    assert plane.operator("POST", "/api/v1/nodes/gpu-a/release").status == 200
    other = Agent(plane, instance_id=SECOND, fingerprint="machine-2")
    assert other.beat(**FULL).status == 200
    (task,) = plane.operator("GET", "/api/v1/tasks").body["tasks"]
    assert (task["status"], task["node_id"]) == ("running", "gpu-a") and task["node_lost_since"]
    other.beat(**FULL, leaving=True)
    assert agent.beat(**FULL).status == 200
    assert plane.operator("GET", f"/api/v1/tasks/{task['id']}").body["node_lost_since"] is None


def test_work_that_was_not_claimed_leaves_with_the_holder(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    made = plane.operator("POST", "/api/v1/tasks", {"name": "t", "image": "one:1", "gpus": {"uuids": ["GPU-a"]}})
    path = f"/api/v1/tasks/{made.body['id']}"
    wait_until(lambda: plane.operator("GET", path).body["status"] == "scheduled", "it is scheduled")
    agent.beat(**FULL, leaving=True)
    gone = {**FULL, "gpus": [], "digests": {**FULL["digests"], "gpus": "none"}}
    assert Agent(plane, instance_id=SECOND, fingerprint="machine-2").beat(**gone).status == 200
    assert plane.operator("GET", path).body["status"] == "pending"


def test_a_container_that_no_claim_explains_holds_its_card(plane: Plane, agent: Agent) -> None:
    """A new instance on the same machine: what it lists as an orphan is not gone, and its card is not offered."""
    agent.beat(**FULL)
    orphan = {"container_id": "c1", "task_id": "x", "uid": "u", "attempt": 1, "gpus": ["GPU-a"]}
    agent.beat(**FULL, foreign=[], orphans=[orphan])
    cards = {card["uuid"]: card["health"] for card in plane.operator("GET", "/api/v1/nodes/gpu-a").body["gpus"]}
    assert cards == {"GPU-a": "dirty", "GPU-b": "ok"}
    agent.beat(**FULL, foreign=[], orphans=[])
    assert {card["health"] for card in plane.operator("GET", "/api/v1/nodes/gpu-a").body["gpus"]} == {"ok"}
