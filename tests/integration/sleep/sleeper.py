"""Tasks that are put to sleep and woken, and what node and server show of them meanwhile."""

from __future__ import annotations

import json
import secrets
from typing import Any

from tests.faults.fleet import Fleet
from tests.faults.world import Scenario
from tests.integration.waiting import until
from tests.lab import Node, task_image


class Sleepers:
    """Works on the fleet's only node."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.place = fleet.places[0]
        self.node: Node = self.place.node
        self.deleted: set[str] = set()
        self.excused: set[str] = set()

    def cli(self, *words: str) -> str:
        """The operator's command line; standard error of a command that must succeed."""
        return self.fleet.plane.cli("tasks", *words).stderr

    def start(self, *words: str, **members: Any) -> str:
        """A task that runs."""
        task_id = self.fleet.submit(f"s-{secrets.token_hex(4)}", *words, **{"stop_grace_s": 2, **members})
        self.fleet.wait(task_id, "running")
        until(f"the program of {task_id} runs", lambda: self.state(task_id)["Running"])
        return task_id

    def plain(self, task_id: str, *words: str, **members: Any) -> str:
        """A task without volumes, which keeps no ledger, and runs."""
        body = {"id": task_id, "name": task_id, "image": task_image.NAME, "command": list(words), "stop_grace_s": 2}
        status, answer = self.fleet.plane.request("POST", "/api/v1/tasks", {**body, **members})
        assert status == 201, answer
        self.fleet.wait(task_id, "running")
        until(f"the program of {task_id} runs", lambda: self.state(task_id)["Running"])
        return task_id

    def asleep(self, *words: str, **members: Any) -> str:
        """A task that sleeps."""
        task_id = self.start(*words, **members)
        self.order(task_id, "sleep")
        self.fleet.wait(task_id, "sleeping")
        return task_id

    def order(self, task_id: str, what: str) -> None:
        self.fleet.order(task_id, what)

    def task(self, task_id: str) -> dict[str, Any]:
        return self.fleet.task(task_id)

    def why(self, task_id: str) -> dict[str, Any]:
        return dict(self.fleet.plane.get(f"/api/v1/tasks/{task_id}/why"))

    def box(self, task_id: str) -> dict[str, Any]:
        """What the engine says of the task's only container; empty when there is none."""
        label = f"label=heterofleet.task={task_id}"
        ids = self.node.docker("ps", "-aq", "--no-trunc", "--filter", label).stdout.split()
        assert len(ids) <= 1, ids
        if not ids:
            return {}
        found = self.node.docker("inspect", ids[0], check=False)  # it may go between the two calls
        return dict(json.loads(found.stdout)[0]) if found.returncode == 0 else {}

    def state(self, task_id: str) -> dict[str, Any]:
        return dict(self.box(task_id).get("State") or {"Running": False})

    def held(self) -> list[str]:
        """Holders of all cards, as the API shows them."""
        return [holder for card in self.fleet.plane.get(f"/api/v1/nodes/{self.place.name}")["gpus"] or ()
                for holder in card["allocated_to"]]  # fmt: skip

    def output(self, task_id: str) -> str:
        return self.node.docker("logs", self.box(task_id)["Id"]).stdout

    def end(self) -> None:
        """Stop what is left, and hold the invariants over all that ran."""
        self.fleet.good()
        self.node.cards.reset()
        for task_id in self.fleet.accepted:
            if task_id not in self.deleted and self.task(task_id)["status"] in ("running", "sleeping", "pending"):
                self.order(task_id, "stop")
                self.fleet.wait(task_id)
        self.fleet.hold(Scenario(deleted=frozenset(self.deleted), excused=frozenset(self.excused)))
        self.fleet.forget_tasks()
        self.deleted.clear()
        self.excused.clear()
