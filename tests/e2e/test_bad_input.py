"""Bad input that needs a fleet: images that are not there, registries that refuse, a node's disk that is full.

The rows join the table of tests/integration/bad_input/test_bad_input.py.
"""

from __future__ import annotations

import re
import time

import pytest

from tests.integration.bad_input.table import Seen, note
from tests.lab import Node
from tests.lab.process import wait_for

FULL = re.compile(r"\bfull\b|No space left")
STATE = "/var/lib/heterofleet/agent"


def end_of(fleet, name: str, seconds: float = 60) -> Seen:
    task = fleet.wait(name, "ended", seconds)
    assert task["status"] == "failed"
    assert_nothing_left(fleet, task)
    return Seen(task["reason"], task["error"])


def assert_nothing_left(fleet, task: dict) -> None:
    """No container, no card, no login of this task stays behind."""
    node = fleet.lab.node(task["node_id"])
    label = f"label=heterofleet.task={task['id']}"
    wait_for(
        "no container is left", lambda: node.docker("ps", "-aq", "--filter", label).stdout.strip() == "" or "there", 20
    )
    held = [card for card in fleet.plane.get(f"/api/v1/nodes/{node.name}")["gpus"] if card["allocated_to"]]
    assert held == []


def login(fleet, password: str | None = None) -> dict[str, str]:
    registry = fleet.lab.registry
    return {"server": registry.address, "username": "lab", "password": password or registry.password}


@pytest.mark.parametrize(
    ("case", "image", "wanted", "parts"),
    [
        (
            "image that does not exist",
            "{registry}/lab/nothing:1",
            "image_not_found",
            ("lab/nothing:1: ", "not found", "check its name and tag"),
        ),
        (
            "tag that does not exist",
            "{registry}/lab/task:none",
            "image_not_found",
            ("lab/task:none: ", "not found", "check its name and tag"),
        ),
        (
            "registry that is not there",
            "198.18.0.1:5999/lab/task:1",
            "image_pull_failed",
            ("5999", "refused", "check that this node reaches the registry"),
        ),
    ],
)
def test_an_image_that_cannot_be_had(fleet, case: str, image: str, wanted: str, parts: tuple[str, ...]) -> None:
    name = "bad-" + case.replace(" ", "-")
    fleet.submit(
        name,
        "exit",
        "0",
        image=image.format(registry=fleet.lab.registry.address),
        registry_auth=login(fleet) if "{registry}" in image else None,
        gpus={"count": 1, "vendor": "nvidia"},
    )
    note(case, end_of(fleet, name, 120), wanted, parts)


@pytest.mark.parametrize(
    ("case", "password"), [("registry without a login", None), ("registry, wrong password", "wr0ng-secret")]
)
def test_a_registry_that_refuses(fleet, case: str, password: str | None) -> None:
    name = "bad-" + case.replace(",", "").replace(" ", "-")
    image = fleet.lab.registry.push_files(f"{fleet.lab.registry.address}/lab/refused:1", {"etc/refused": name})
    auth = {} if password is None else {"registry_auth": login(fleet, password)}
    fleet.submit(name, "exit", "0", image=image, **auth)
    seen = end_of(fleet, name)
    note(case, seen, "registry_auth_failed", ("lab/refused:1: ", "auth", "give the task a registry_auth"))
    node = fleet.node_of(name)
    log = node.run(["journalctl", "-u", "heterofleet-agent", "--no-pager", "-o", "cat"]).stdout
    assert "wr0ng-secret" not in log + fleet.plane.log.read_text() + seen.sentence


def test_a_node_whose_state_disk_is_full_takes_no_work_and_loses_none(fleet) -> None:
    """What cannot be written down is not claimed; with space again the task runs, once."""
    node = fleet.lab.nodes[-1]
    move_state(node, to_small_disk=True)
    began = int(time.time())
    try:
        node.run(["sh", "-c", f"cat /dev/zero > {STATE}/ballast 2>/dev/null; sync; true"])
        fleet.submit("bad-full-state", "print", "once", "exit", "0", node_id=node.name)
        complaint: list[str] = []
        words = ["journalctl", "-u", "heterofleet-agent", "--no-pager", "-o", "cat"]

        def complains() -> object:
            log = node.run([*words, "--since", f"@{began}"]).stdout
            complaint[:] = [line for line in log.splitlines() if "journal" in line and FULL.search(line)]
            return bool(complaint) or log[-500:]

        wait_for("the agent says that it cannot write", complains, 40)
        assert fleet.task("bad-full-state")["status"] in ("scheduled", "pending")
        assert "Traceback" not in "".join(complaint)
        note(
            "agent's disk fills up",
            Seen("not claimed", complaint[-1].partition("WARNING ")[2]),
            "not claimed",
            ("full", "free some space"),
        )
        node.run(["rm", f"{STATE}/ballast"])
        task = fleet.wait("bad-full-state", "ended", 90)
        assert (task["status"], task["starts"]) == ("completed", 1)
    finally:
        node.run(["rm", "-f", f"{STATE}/ballast"], check=False)
        move_state(node, to_small_disk=False)


def move_state(node: Node, *, to_small_disk: bool) -> None:
    """The agent's state to a file system of 4 MiB, or back; the agent is restarted around it."""
    keep = f"{STATE}.keep"
    steps = (
        f"cp -a {STATE} {keep}; mount -t tmpfs -o size=4m,mode=700 tmpfs {STATE}; cp -a {keep}/. {STATE}/"
        if to_small_disk
        else f"rm -rf {keep}; cp -a {STATE} {keep}; umount {STATE}; cp -a {keep}/. {STATE}/; rm -rf {keep}"
    )
    node.run(["sh", "-ec", f"systemctl stop heterofleet-agent; {steps}; systemctl start heterofleet-agent"])
    status = ["/opt/heterofleet/current/heterofleet-agent", "status", "--wait", "30"]
    node.run([*status, "--config", "/etc/heterofleet/agent.yaml"])
