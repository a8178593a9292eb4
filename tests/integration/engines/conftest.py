from __future__ import annotations

from tests.integration.agent_tasks.conftest import make_agent, plane  # noqa: F401
from tests.lab.fixtures import *  # noqa: F403
