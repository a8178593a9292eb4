"""One fleet for the whole run: three lab nodes, a control plane on the lab's bridge, agents by the script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.demo import fleet as installing
from tests.integration.bad_input.table import pytest_terminal_summary  # noqa: F401
from tests.lab import Lab, Node
from tests.lab.control_plane import ControlPlane
from tests.lab.fixtures import lab  # noqa: F401
from tests.lab.process import Progress, wait_for

CARDS = 2
DONE = ("completed", "failed", "cancelled", "stopped")


@dataclass(frozen=True)
class Fleet:
    lab: Lab
    plane: ControlPlane

    def submit(self, task_id: str, *command: str, **body: object) -> None:
        """A task of the lab's image by the API."""
        status, answer = self.plane.request(
            "POST",
            "/api/v1/tasks",
            {"id": task_id, "name": task_id, "image": self.lab.task_image, "command": list(command), **body},
        )
        assert status == 201, answer

    def task(self, task_id: str) -> dict:
        return self.plane.get(f"/api/v1/tasks/{task_id}")

    def wait(self, task_id: str, what: str, seconds: float = 60) -> dict:
        """Until the task's status or phase is ``what`` (``ended``: any terminal status)."""
        seen: dict = {}

        def probe() -> object:
            seen.update(self.task(task_id))
            if what == "ended":
                return seen["status"] in DONE or (seen["status"], seen["phase"])
            return what in (seen["status"], seen["phase"]) or (seen["status"], seen["phase"], seen["reason"])

        wait_for(f"{task_id} is {what}", probe, seconds, 0.1, hint=f"Read {self.plane.log}.")
        return seen

    def node_of(self, task_id: str) -> Node:
        return self.lab.node(self.task(task_id)["node_id"])


@pytest.fixture(scope="session")
def fleet(lab: Lab) -> Iterator[Fleet]:
    plane = ControlPlane()
    plane.remove()
    installing.remove_foreign_containers(lab)  # of the plane that is gone now
    plane.start()
    installing.publish_builds(plane, installing.agent_builds(Progress()))
    installing.install_everywhere(plane, lab, Progress())
    installing.wait_online(plane, len(lab.nodes), CARDS)
    yield Fleet(lab, plane)
    for node in lab.nodes:
        node.run(["systemctl", "stop", "heterofleet-agent"], check=False)
    plane.remove()
