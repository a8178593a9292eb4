"""One lab node with an agent by the script, and agents beside this machine's own engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.demo import fleet as installing
from tests.faults.agent_process import UNIT, AgentProcess
from tests.faults.fleet import clean
from tests.faults.world import TERMINAL
from tests.integration.agent_tasks.conftest import agent, plane  # noqa: F401
from tests.integration.waiting import until
from tests.lab import Lab, Node
from tests.lab.control_plane import ControlPlane
from tests.lab.fixtures import lab  # noqa: F401
from tests.lab.process import Progress

FOLDER = "/srv/hf-checkpoints"
"""On the node: the volume with the checkpoints."""
AGENT = {
    "HETEROFLEET_PROCESS_DRIVER": "true",
    "HETEROFLEET_POLL_INTERVAL_S": "1",
    "HETEROFLEET_RECONCILE_INTERVAL_S": "3",
    "HETEROFLEET_DISK_MIN_FREE_MIB": "10",
}


@dataclass(frozen=True)
class Site:
    """A control plane and one node of its own."""

    plane: ControlPlane
    node: Node

    def task(self, task_id: str) -> dict[str, Any]:
        return dict(self.plane.get(f"/api/v1/tasks/{task_id}"))

    def ended(self, task_id: str, timeout: float = 90) -> dict[str, Any]:
        until(f"{task_id} has ended", lambda: self.task(task_id)["status"] in TERMINAL, timeout)
        return self.task(task_id)


@pytest.fixture
def site(lab: Lab) -> Iterator[Site]:
    node = lab.node(1)
    control = ControlPlane("checkpoints", heartbeat_interval_s=1, start_grace_s=5)
    control.remove()
    clean(node)
    try:
        control.start()
        installing.publish_builds(control, installing.agent_builds(Progress()))
        installing.install(control, node)
        AgentProcess(node).configure(AGENT)
        node.run(["systemctl", "restart", UNIT])
        installing.wait_online(control, 1)
        node.sh(f"rm -rf {FOLDER}; mkdir {FOLDER}")
        yield Site(control, node)
    finally:
        if not node.running:
            node.power_on()
        clean(node)
        node.sh(f"rm -rf {FOLDER}")
        control.remove()
