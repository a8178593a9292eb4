"""Tasks that are plain processes on a lab node, and what the node itself shows of them."""

from __future__ import annotations

import contextlib
import json
import secrets
from typing import Any

from tests.faults.agent_process import UNIT
from tests.faults.fleet import Fleet
from tests.faults.world import TERMINAL
from tests.integration.waiting import until
from tests.lab import Node

RECORDS = "/run/heterofleet/processes"
OUTPUT = "/var/lib/heterofleet/agent/output"


class Host:
    """Works on the fleet's only node."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.place = fleet.places[0]
        self.node: Node = self.place.node
        self._made: list[str] = []

    def submit(self, *command: str, **members: Any) -> str:
        """A task of driver process."""
        task_id = str(members.pop("id", f"p-{secrets.token_hex(4)}"))
        body = {"id": task_id, "name": task_id, "driver": "process", "command": list(command), "stop_grace_s": 2}
        status, answer = self.fleet.plane.request("POST", "/api/v1/tasks", {**body, **members})
        assert status == 201, answer
        self._made.append(task_id)
        return task_id

    def running(self, *command: str, **members: Any) -> str:
        """A task whose program runs."""
        task_id = self.submit(*command, **members)
        self.fleet.wait(task_id, "running")
        until(f"the program of {task_id} runs", lambda: self.pid(task_id) > 0)
        return task_id

    def ended(self, task_id: str, timeout: float = 60) -> dict[str, Any]:
        return self.fleet.wait(task_id, "ended", timeout)

    def run(self, script: str, **members: Any) -> dict[str, Any]:
        """A shell script's end."""
        return self.ended(self.submit("/bin/sh", "-c", script, **members))

    def stop(self, task_id: str) -> None:
        self.fleet.order(task_id, "stop")

    def show(self, task_id: str, *properties: str, unit: str = "") -> dict[str, str]:
        """Properties of the task's unit, as systemd has them."""
        words = [f"--property={','.join(properties)}", unit or f"heterofleet-task-{task_id}.service"]
        lines = self.node.run(["systemctl", "show", *words]).stdout.splitlines()
        return dict(line.partition("=")[::2] for line in lines if "=" in line)

    def pid(self, task_id: str) -> int:
        """Its program's, as the node numbers it; 0 when there is none."""
        return int(self.show(task_id, "MainPID").get("MainPID", "0"))

    def view(self) -> dict[str, Any]:
        """The node by the API."""
        return dict(self.fleet.plane.get(f"/api/v1/nodes/{self.place.name}"))

    def held(self) -> list[dict[str, Any]]:
        """The claims that the agent itself says it holds."""
        words = ["heterofleet-agent", "status", "--json"]
        return list(json.loads(self.node.run(words, check=False).stdout)["tasks"])

    def output(self, task_id: str) -> str:
        """What lies in the files of its output."""
        record = self.node.sh(f"grep -l '\"{task_id}\"' {RECORDS}/*.json || :").split()
        return self.node.sh(f"cat {OUTPUT}/{record[0].rpartition('/')[2][:-5]}/[0-9]*") if record else ""

    def offered(self, *drivers: str) -> None:
        """Wait until the node says that it runs these."""

        def told() -> bool:
            node = self.view()
            return set(drivers) <= set(node["drivers"] or ()) and node["state"] == "online"

        until(f"{self.place.name} offers {drivers}", told)

    def left(self) -> list[str]:
        """What is left of processes on the node: units, records, outputs."""
        units = self.node.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "heterofleet-task-*",
                               "heterofleet-output-*"]).stdout.splitlines()  # fmt: skip
        files = self.node.sh(f"ls {RECORDS} {OUTPUT} 2>/dev/null || :").split()
        return [*units, *(name for name in files if not name.startswith("/"))]

    def restart_agent(self) -> None:
        self.node.run(["systemctl", "restart", UNIT])

    def end(self) -> None:
        """Stop what a test has left, and see that nothing stays."""
        self.fleet.good()
        for task_id in self._made:
            task = self.fleet.task(task_id)
            if task["status"] not in TERMINAL:
                self.stop(task_id)
                self.ended(task_id)
        self._made.clear()
        with contextlib.suppress(AssertionError):
            until("nothing of the processes is left", lambda: not self.left())
        left = self.left()
        assert not left, left


def clear(node: Node) -> None:
    """No process of a task, no record of one."""
    node.sh(
        "systemctl stop 'heterofleet-task-*' 'heterofleet-output-*' 2>/dev/null || :; "
        f"systemctl reset-failed 'heterofleet-*' 2>/dev/null || :; rm -rf {RECORDS}"
    )
