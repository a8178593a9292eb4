"""Gathering a world: ledger and engine of each node, and the server's API; nothing of the agent."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.faults.checker import check, report
from tests.faults.ledger import Ledger
from tests.faults.world import SETTLING, Box, Card, Scenario, Violation, World
from tests.integration.waiting import until
from tests.lab import Node
from tests.lab.control_plane import ControlPlane

PROCESS = "heterofleet-task-"
OWN = {"label": ["heterofleet.uid"]}


def gather(plane: ControlPlane, nodes: Sequence[Node], accepted: Iterable[str], only: bool = False) -> World:
    """The world as it is now; all nodes must be powered and their engines must answer. ``only``: what these tasks
    left in it, and nothing of others."""
    # The server first: what it calls ended has ended by the time the engines are asked.
    tasks = {task_id: _task(plane, task_id) for task_id in accepted}
    cards = _cards(plane, {node.name for node in nodes})
    with ThreadPoolExecutor(len(nodes)) as pool:
        boxes = [box for found in pool.map(_boxes, nodes) for box in found]
        ledgers = list(pool.map(Ledger, nodes))
        lines = [line for found in pool.map(Ledger.lines, ledgers) for line in found]
        told = [one for found in pool.map(Ledger.told, ledgers) for one in found]
    processes = {task_id: task for task_id, task in tasks.items() if task is not None and task["driver"] == "process"}
    if processes:
        boxes += [box for node in nodes for box in _units(node, processes)]
    if only:
        lines = [line for line in lines if line.run in tasks]
        boxes = [box for box in boxes if box.task_id in tasks]
        cards = [dataclasses.replace(card, allocated_to=tuple(one for one in card.allocated_to if one in tasks))
                 for card in cards]  # fmt: skip
    twice = {line.run for line in lines if sum(other.box == line.box for other in lines if other.kind == "start") > 1}
    return World(
        lines=tuple(lines),
        told=tuple(told),
        boxes=tuple(boxes),
        tasks=tasks,
        cards=tuple(cards),
        wakes={task_id: _wakes(plane, task_id) for task_id in twice & set(tasks)},
        clock_offset=time.time() - time.clock_gettime(time.CLOCK_BOOTTIME),
    )


def settle(
    plane: ControlPlane,
    nodes: Sequence[Node],
    accepted: Iterable[str],
    scenario: Scenario = Scenario(),
    timeout: float = 60,
    only: bool = False,
) -> tuple[World, list[Violation]]:
    """The world once nothing in it is on its way any more, and what is wrong with it. What cannot heal is told at
    once; what may only be late (an end, a removal, a card) after ``timeout`` seconds."""
    ids = list(accepted)
    deadline = time.monotonic() + timeout
    while True:
        world = gather(plane, nodes, ids, only)
        found = check(world, scenario)
        if not found or any(one.invariant not in SETTLING for one in found) or time.monotonic() > deadline:
            return world, found
        time.sleep(0.3)


def hold(
    plane: ControlPlane, nodes: Sequence[Node], accepted: Iterable[str], scenario: Scenario = Scenario(),
    timeout: float = 60,
) -> World:  # fmt: skip
    """Assert that all invariants hold; the report is the assertion's text."""
    world, found = settle(plane, nodes, accepted, scenario, timeout)
    assert not found, "\n" + report(world, found)
    return world


def _boxes(node: Node) -> list[Box]:
    client = node.docker_client()
    try:
        return [
            Box(
                node.name,
                row["Id"],
                row["Labels"]["heterofleet.task"],
                row["Labels"]["heterofleet.uid"],
                int(row["Labels"]["heterofleet.attempt"]),
                row["State"],
                _exit_code(client, row["Id"]) if row["State"] == "exited" else None,
            )
            for row in client.api.containers(all=True, filters=OWN)
        ]
    finally:
        client.close()


def _units(node: Node, tasks: Mapping[str, Mapping[str, Any]]) -> list[Box]:
    """The units of process tasks, as the node's systemd shows them; named by their invocation, as in the ledger."""
    shown = node.run(
        ["systemctl", "show", f"{PROCESS}*", "--property=Id,ActiveState,InvocationID,ExecMainStatus"]
    ).stdout
    found = []
    for block in shown.strip().split("\n\n"):
        said = dict(line.partition("=")[::2] for line in block.splitlines())
        task_id = said.get("Id", "").removeprefix(PROCESS).removesuffix(".service")
        if task_id not in tasks:
            continue
        alive = said["ActiveState"] in ("active", "activating", "deactivating")
        code = None if alive else int(said["ExecMainStatus"] or 0)
        owner = (tasks[task_id]["uid"], tasks[task_id]["attempt"])
        found.append(Box(node.name, said["InvocationID"], task_id, *owner, "running" if alive else "exited", code))
    return found


def _exit_code(client: Any, box: str) -> int | None:
    from docker.errors import NotFound

    try:
        return int(client.api.inspect_container(box)["State"]["ExitCode"])
    except NotFound:  # it was removed since the listing
        return None


def _task(plane: ControlPlane, task_id: str) -> Mapping[str, Any] | None:
    """None: the server says that there is none. A server that does not answer is asked again."""
    status, body = until(f"an answer about {task_id}", lambda: _answer(plane, f"/api/v1/tasks/{task_id}"))
    assert status in (200, 404), body
    return body if status == 200 else None


def _answer(plane: ControlPlane, path: str) -> tuple[int, Any] | None:
    status, body = plane.request("GET", path)
    return (status, body) if status not in (0, 503) else None


def _cards(plane: ControlPlane, names: set[str]) -> list[Card]:
    _, body = until("an answer about the nodes", lambda: _answer(plane, "/api/v1/nodes"))
    return [
        Card(node["id"], gpu["uuid"], tuple(gpu["allocated_to"]), gpu["mode"] or "whole")
        for node in body["nodes"]
        if node["id"] in names
        for gpu in node["gpus"] or ()
    ]


def _wakes(plane: ControlPlane, task_id: str) -> int:
    _, body = until("an answer about events", lambda: _answer(plane, f"/api/v1/events?task={task_id}&kind=task_state"))
    return sum(1 for event in body["events"] if (event["detail"] or "").startswith("sleeping to running"))
