"""The system key of a live fleet is changed, by the steps of docs/operations.md ("Changing keys")."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.demo import fleet as installing
from tests.lab import Node, places
from tests.lab.process import Progress, wait_for

UNIT = "heterofleet-agent.service"
KEY_FILE = "/etc/heterofleet/agent.key"


def preflight(node: Node, url: str, key: str) -> int:
    """The HTTP status of a preflight from the node with this key, which is on standard input only."""
    done = node.run(
        ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "@-", f"{url}/api/v1/agent/preflight"],
        input=f"X-API-Key: {key}\n",
    )
    return int(done.stdout)


def refusals(node: Node, since: float) -> str:
    words = ["journalctl", "-u", UNIT, "--no-pager", "-o", "cat", "--since", f"@{since:.0f}"]
    said = node.run(words).stdout
    return "\n".join(line for line in said.splitlines() if re.search(r"bad_api_key|\(401\)|answered 401", line))


def container(node: Node) -> str:
    return node.docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", "task-outlives-the-key").stdout.strip()


def restarted(plane: Any, **settings: Any) -> None:
    plane.settings = {**{k: v for k, v in plane.settings.items() if k != "api_key_previous"}, **settings}
    plane.stop()
    plane.start()


def all_beat_after(fleet: Any, moment: float) -> None:
    """Every node has beaten anew since then: the server has answered it with 200."""
    from runtime.protocol.times import from_wire

    def probe() -> object:
        nodes = fleet.plane.get("/api/v1/nodes")["nodes"]
        late = [n["id"] for n in nodes if not n["last_seen_at"] or from_wire(n["last_seen_at"]).timestamp() <= moment]
        return True if not late else f"not yet: {late}"

    wait_for("every node beats", probe, 40, 0.2)


@pytest.fixture
def task(fleet: Any) -> Iterator[Node]:
    fleet.submit("outlives-the-key", "forever")
    fleet.wait("outlives-the-key", "running")
    yield fleet.node_of("outlives-the-key")
    fleet.plane.cli("tasks", "stop", "outlives-the-key")
    fleet.wait("outlives-the-key", "ended")


def test_the_key_is_changed_with_no_refused_beat_and_no_task_touched(fleet: Any, task: Node) -> None:
    plane, node = fleet.plane, fleet.lab.nodes[0]
    old, new = plane.key, secrets.token_urlsafe(32)
    events = len(plane.get("/api/v1/events?kind=node_state&limit=1000")["events"])
    before, began = container(task), time.time()

    # 1. The server takes both.
    places.write_atomically(plane.key_file, new.encode(), 0o600)
    restarted(plane, api_key_previous=old)
    assert [preflight(node, plane.url, key) for key in (old, new, "neither-of-them-0123")] == [200, 200, 401]
    all_beat_after(fleet, time.time())
    assert node.get(KEY_FILE).decode().strip() == old

    # 2. The nodes get the new one, by the script that installed them.
    installing.install_everywhere(plane, fleet.lab, Progress())
    for each in fleet.lab.nodes:
        assert each.get(KEY_FILE).decode().strip() == new
        assert each.sh(f"stat -c '%a %U' {KEY_FILE}") == "600 root"
        assert old.encode() not in each.get("/etc/heterofleet/agent.yaml")
        assert each.sh("ls /etc/heterofleet").split() == ["agent.key", "agent.yaml"]

    # 3. The server forgets the old one.
    restarted(plane)
    assert [preflight(node, plane.url, key) for key in (old, new)] == [401, 200]
    all_beat_after(fleet, time.time())

    assert container(task) == before
    assert fleet.task("outlives-the-key")["status"] == "running"
    assert {each.name: refusals(each, began) for each in fleet.lab.nodes} == {each.name: "" for each in fleet.lab.nodes}
    states = plane.get("/api/v1/events?kind=node_state&limit=1000")["events"][events:]
    # An agent that is installed again is away for a moment; how long is the machine's speed, not the key.
    assert [event for event in states if event["code"] == "lost"] == []
