"""The control plane and the agents of the task tests, for what a journal may lose."""

from __future__ import annotations

from tests.integration.agent_tasks.conftest import make_agent, plane
from tests.lab.fixtures import *  # noqa: F403

__all__ = ["make_agent", "plane"]
