"""Who is who where the machine itself matters: machine-id, hostname, boot, and a state folder carried by tar.

The whole table of situations is in tests/integration/identity; here two real nodes play the ones that depend on what
a machine shows of itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Fleet
from tests.lab import Node
from tests.lab.process import wait_for

STATE = "/var/lib/heterofleet/agent"
AGENT = "heterofleet-agent"


def identity(node: Node) -> dict[str, Any]:
    return dict(json.loads(node.get(f"{STATE}/identity.json")))


def status(node: Node) -> dict[str, Any]:
    done = node.run(["/opt/heterofleet/current/heterofleet-agent", "status", "--json"], check=False)
    return dict(json.loads(done.stdout or "null") or {})


def registered(node: Node, seconds: float = 40) -> dict[str, Any]:
    """Its identity, once the server has accepted its newest beat."""

    def probe() -> object:
        said = status(node)
        return said.get("registered") is True or said.get("last_error") or "nothing yet"

    wait_for(f"the agent of {node.name} is registered", probe, seconds, 0.3)
    return identity(node)


def container(node: Node, task_id: str) -> str:
    """Id and start time of the task's running container, once it runs."""

    def look() -> list[str]:
        return node.docker("ps", "-q", "--no-trunc", "--filter", f"label=heterofleet.task={task_id}").stdout.split()

    wait_for(f"{task_id} runs on {node.name}", lambda: len(look()) == 1 or look(), 30, 0.2)
    return node.docker("inspect", "-f", "{{.Id}} {{.State.StartedAt}}", look()[0]).stdout.strip()


@pytest.fixture
def two(fleet: Fleet) -> Iterator[tuple[Node, Node]]:
    """Two nodes of the fleet; the second gets its own state and machine-id back."""
    first, second = fleet.lab.node(1), fleet.lab.node(2)
    for node in (first, second):
        node.run(["systemctl", "start", AGENT])
        registered(node)
    second.sh(f"cp -a {STATE} {STATE}.own; cp -a /etc/machine-id /etc/machine-id.own")
    yield first, second
    second.sh(
        f"systemctl stop {AGENT}; rm -rf {STATE}; mv {STATE}.own {STATE}; "
        f"cat /etc/machine-id.own > /etc/machine-id; rm /etc/machine-id.own; systemctl start {AGENT}"
    )
    registered(second)
    for other in fleet.plane.get("/api/v1/nodes")["nodes"]:
        if other["id"].startswith(f"{second.name}-"):
            fleet.plane.request("DELETE", f"/api/v1/nodes/{other['id']}")


def carry(first: Node, second: Node) -> None:
    """The state folder of a running agent onto another node, by tar."""
    second.run(["systemctl", "stop", AGENT])
    packed = first.run(["sh", "-c", f"tar -C {STATE} -cf - . | base64"]).stdout
    second.sh(f"rm -rf {STATE}; mkdir -m 700 {STATE}; base64 -d | tar -C {STATE} -xf -", input=packed)


def events(fleet: Fleet, node_id: str) -> list[str]:
    found = fleet.plane.get(f"/api/v1/events?node={node_id}&limit=1000")["events"]
    return [f"{event['kind']}:{event['code']}" for event in found]


def test_a_state_folder_on_another_machine_and_a_clone(fleet: Fleet, two: tuple[Node, Node]) -> None:
    """By tar to another machine; then the same with the machine-id of the first, which makes it a clone."""
    first, second = two
    task = f"who-{first.name}"
    fleet.submit(task, "forever", node_id=first.name)
    fleet.wait(task, "running")
    runs, before = container(first, task), identity(first)
    bound = [kind for kind in events(fleet, first.name) if kind.startswith(("node_registered", "node_replaced"))]

    carry(first, second)
    second.run(["systemctl", "start", AGENT])
    copy = registered(second)
    assert copy["instance_id"] != before["instance_id"] and copy["run"] == 1
    assert copy["node_id"].startswith(f"{second.name}-") and len(copy["node_id"]) == len(second.name) + 7
    assert status(second)["tasks"] == []

    carry(first, second)
    second.put("/etc/machine-id", first.get("/etc/machine-id"), 0o444)
    second.run(["systemctl", "start", AGENT])
    wait_for(
        "the clone is another instance",
        lambda: identity(second)["instance_id"] != before["instance_id"] or str(status(second).get("last_error")),
        60,
        0.3,
    )
    clone = registered(second)
    assert clone["node_id"].startswith(f"{second.name}-") and clone["fingerprint"] == before["fingerprint"]
    assert "node_state:instance_cloned" in events(fleet, first.name)

    assert registered(first)["instance_id"] == before["instance_id"]
    assert container(first, task) == runs and fleet.task(task)["status"] == "running"
    after = [kind for kind in events(fleet, first.name) if kind.startswith(("node_registered", "node_replaced"))]
    assert after == bound, "the name was never bound anew"
    fleet.plane.request("POST", f"/api/v1/tasks/{task}/stop")
    fleet.wait(task, "ended")


@pytest.mark.case("FC-013")
def test_a_renamed_machine_is_the_same_node(fleet: Fleet) -> None:
    """A rename made a second node while the first stayed for ever, or failed its task."""
    node = fleet.lab.node(1)
    registered(node)
    task = f"renamed-{node.name}"
    fleet.submit(task, "forever", node_id=node.name)
    fleet.wait(task, "running")
    runs, before = container(node, task), identity(node)
    count = len(fleet.plane.get("/api/v1/nodes")["nodes"])
    try:
        node.run(["hostname", "gpu-b"])
        wait_for("it is shown", lambda: shown(fleet, node) == "gpu-b" or shown(fleet, node), 30, 0.3)
        node.run(["systemctl", "restart", AGENT])
        after = registered(node)
        assert (after["node_id"], after["instance_id"]) == (node.name, before["instance_id"])
        assert shown(fleet, node) == "gpu-b" and len(fleet.plane.get("/api/v1/nodes")["nodes"]) == count
        assert "gpu-b" in fleet.plane.cli("nodes", "show", node.name).stdout
        assert container(node, task) == runs and fleet.task(task)["status"] == "running"
    finally:
        node.run(["hostname", node.name])
        fleet.plane.request("POST", f"/api/v1/tasks/{task}/stop")
    fleet.wait(task, "ended")


def shown(fleet: Fleet, node: Node) -> str:
    return str(fleet.plane.get(f"/api/v1/nodes/{node.name}")["hostname"])
