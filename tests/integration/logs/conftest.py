"""The control plane and the agents of the task tests, for output and for disks."""

from __future__ import annotations

from tests.integration.agent_tasks.conftest import agent, make_agent, plane
from tests.lab.fixtures import *  # noqa: F403

__all__ = ["agent", "make_agent", "plane"]
