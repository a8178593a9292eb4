"""A server that comes back after an outage judges nobody by the time that it was away itself."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from runtime.protocol import times
from tests.integration.restore.planes import Speaker, World, is_status, submit, task
from tests.integration.server_core.plane import Plane, wait_until

NODES = 50
AWAY = timedelta(minutes=30)
BEATS = {"heartbeat_interval_s": 1, "unreachable_after_beats": 3, "lost_after_beats": 4}
GRACE_S = 4


def states(plane: Plane) -> dict[str, str]:
    return {node["id"]: node["state"] for node in plane.operator("GET", "/api/v1/nodes").body["nodes"]}


def age(world: World) -> None:
    """As if the server had been stopped half an hour ago: every time that it has stored is so old."""
    then = times.to_wire(times.now() - AWAY)
    with closing(sqlite3.connect(world.database)) as connection:
        connection.execute("UPDATE nodes SET last_seen_at = ?", (then,))
        connection.execute("UPDATE tasks SET scheduled_at = ?, started_at = ?, created_at = ?", (then, then, then))
        connection.execute("UPDATE attempts SET scheduled_at = ?", (then,))
        connection.commit()


def tasks(plane: Plane) -> dict[str, tuple[str, int]]:
    """Task id -> status and attempt."""
    listed = plane.operator("GET", "/api/v1/tasks?limit=1000").body["tasks"]
    return {one["id"]: (one["status"], one["attempt"]) for one in listed}


@pytest.mark.case("FC-016")
def test_the_fleet_is_not_buried(tmp_path: Path) -> None:
    """After a long stop every "last seen" was old: all nodes were called dead, and their jobs failed or given away,
    before the first heartbeat could arrive."""
    world = World(tmp_path / "state")
    nodes = [Speaker(f"gpu-{number:02d}") for number in range(NODES)]
    wishes = {node.node_id: ("wait", "reschedule", "fail")[number % 3] for number, node in enumerate(nodes)}
    heard, silent = nodes[:-5], nodes[-5:]
    unclaimed = nodes[0]
    with world.serving(heartbeat_interval_s=60) as plane:
        for node in nodes:
            wish = {"on_node_lost": wishes[node.node_id], "max_attempts": 3}
            submit(plane, f"on-{node.node_id}", node_id=node.node_id, **wish)
            node.beat(plane)
        wait_until(lambda: {one[0] for one in tasks(plane).values()} == {"scheduled"}, "all are placed", 60)
        for node in nodes:
            if node is not unclaimed:
                assert node.put(plane, f"on-{node.node_id}", 1, "scheduled", "running").status == 200
        before = tasks(plane)
    age(world)
    with world.serving(**BEATS, start_grace_s=GRACE_S) as plane:
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1, "the first nodes ask again")
        while time.monotonic() - began < GRACE_S:
            for node in heard:
                node.beat(plane)
            assert "lost" not in states(plane).values(), "not before a whole interval since the server's own start"
            assert tasks(plane) == before

        def only_the_silent() -> bool:
            for node in heard:
                node.beat(plane)
            found = states(plane)
            assert "lost" not in {found[node.node_id] for node in heard}
            return {found[node.node_id] for node in silent} == {"lost"}

        wait_until(only_the_silent, "those that stayed silent are marked, and nobody else", 60)
        assert time.monotonic() - began >= GRACE_S + BEATS["lost_after_beats"]
        after = tasks(plane)
        ends = {"wait": "running", "reschedule": "pending", "fail": "failed"}
        assert {node.node_id: after[f"on-{node.node_id}"][0] for node in silent} == {
            node.node_id: ends[wishes[node.node_id]] for node in silent
        }
        assert {name: after[name] for name in (f"on-{node.node_id}" for node in heard)} == {
            name: before[name] for name in (f"on-{node.node_id}" for node in heard)
        }
        # While the server was away nobody could claim: that one is not overdue.
        assert unclaimed.put(plane, f"on-{unclaimed.node_id}", 1, "scheduled", "running").status == 200


@pytest.mark.case("FC-016")
def test_all_silent_together_is_the_servers_own_trouble(tmp_path: Path) -> None:
    """The network between server and fleet comes back later than the server: then nobody is lost, and that is said."""
    world = World(tmp_path / "state")
    nodes = [Speaker(f"gpu-{number}") for number in range(6)]
    with world.serving(**BEATS) as plane:
        for node in nodes:
            node.beat(plane)
    age(world)
    with world.serving(**BEATS) as plane:
        for node in nodes:
            node.beat(plane)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > BEATS["lost_after_beats"] + 2, "long enough to be lost")
        assert set(states(plane).values()) == {"unreachable"}
        ready = plane.call("GET", "/readyz")
        assert ready.status == 200 and ready.body["brake"]["causes"] == ["many_silent"]

        def all_online() -> bool:
            for node in nodes:
                node.beat(plane)
            brake = plane.call("GET", "/readyz").body["brake"]["on"]
            return not brake and set(states(plane).values()) == {"online"}

        wait_until(all_online, "it lets go by itself")


@pytest.mark.case("FC-016")
def test_work_waits_for_the_nodes_and_not_for_the_dead(tmp_path: Path) -> None:
    """What the database says of nodes is old: nothing is given to one that has not spoken since the start."""
    world = World(tmp_path / "state")
    a, b = Speaker("gpu-a"), Speaker("gpu-b")
    with world.serving() as plane:
        for node in (a, b):
            node.beat(plane)
        wait_until(lambda: len(world.rows("SELECT 1 FROM nodes WHERE facts IS NOT NULL")) == 2, "facts")
    with world.serving() as plane:
        submit(plane, "waits")
        assert [task(plane, "waits")["status"] for _ in range(5)] == ["pending"] * 5
        b.beat(plane)
        assert is_status(plane, "waits", "scheduled")["node_id"] == "gpu-b"
