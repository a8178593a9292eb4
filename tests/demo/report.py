"""What happened, from the API and, independently of it, from the engines inside the nodes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Optional

from rich.console import Console
from rich.table import Table

from tests.demo.story import Scene
from tests.lab import Lab


def engine_ends(lab: Lab, since: float) -> dict[str, tuple[str, int]]:
    """Task id -> (node, exit code) by the `die` events of every node's engine since that time."""
    ends = {}
    until = f"{time.time() + 1:.0f}"  # whole seconds: what has just happened must lie before it
    for node in lab.nodes:
        text = node.docker(
            "events", "--since", f"{since:.0f}", "--until", until, "--filter", "event=die", "--format", "{{json .}}"
        ).stdout
        for line in text.splitlines():
            attributes = json.loads(line)["Actor"]["Attributes"]
            if "heterofleet.task" in attributes:
                ends[attributes["heterofleet.task"]] = (node.name, int(attributes["exitCode"]))
    return ends


def engine_running(lab: Lab) -> dict[str, tuple[str, str]]:
    """Task id -> (node, container id) by `docker inspect` of what runs on the nodes now."""
    running = {}
    for node in lab.nodes:
        ids = node.docker("ps", "-q", "--no-trunc", "--filter", "label=heterofleet.task").stdout.split()
        for item in json.loads(node.docker("inspect", *ids).stdout) if ids else []:
            if item["State"]["Running"]:
                running[item["Config"]["Labels"]["heterofleet.task"]] = (node.name, item["Id"])
    return running


def differences(
    scene: Scene,
    task: dict[str, Any],
    ends: dict[str, tuple[str, int]],
    running: dict[str, tuple[str, str]],
) -> list[str]:
    """Where the API's word differs from what must be, or from what the node's engine says."""
    found = []
    for name, wanted in (("status", scene.status), ("exit_code", scene.exit_code), ("reason", scene.reason)):
        if name == "reason" and wanted is None:
            continue
        if task[name] != wanted:
            found.append(f"{name} is {task[name]!r}, wanted {wanted!r}")
    if scene.stays:
        if not task["ready"]:
            found.append("not ready")
        if running.get(task["id"], ("nowhere",))[0] != task["node_id"]:
            found.append(f"the engines run it on {running.get(task['id'])}, the API says {task['node_id']}")
        return found
    where, code = ends.get(task["id"], ("nowhere", None))
    if where != task["node_id"]:
        found.append(f"the engines saw it end on {where}, the API says {task['node_id']}")
    # A program killed after its limit ends with 137 for the engine; for the task the limit's own code counts.
    engine_code: Optional[int] = 124 if task["reason"] == "timeout" else code
    if engine_code != task["exit_code"]:
        found.append(f"the engine saw exit code {code}, the API says {task['exit_code']}")
    if task["id"] in running:
        found.append("its container still runs")
    return found


def print_table(console: Console, rows: Sequence[tuple[Scene, dict[str, Any], list[str]]]) -> None:
    table = Table(title="What happened, as the control plane tells it")
    for column in ("task", "what it shows", "node", "status", "exit", "reason", "agrees with the engine"):
        table.add_column(column)
    for scene, task, wrong in rows:
        code = task["exit_code"]
        table.add_row(
            scene.name,
            scene.shows,
            task["node_id"] or "-",
            task["status"] + (" (ready)" if task["ready"] else ""),
            "-" if code is None else str(code),
            task["reason"] or "-",
            "[green]yes[/green]" if not wrong else "[red]" + "; ".join(wrong) + "[/red]",
        )
    console.print(table)
