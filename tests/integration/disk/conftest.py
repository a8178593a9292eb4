"""The control plane and the agents of the task tests, and an engine whose disk is small."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.agent_tasks.conftest import agent, make_agent, plane
from tests.integration.disk.small_engine import SmallEngine, small_engine
from tests.lab.fixtures import *  # noqa: F403

__all__ = ["agent", "make_agent", "plane"]


@pytest.fixture(scope="module")
def engine(lab: object) -> Iterator[SmallEngine]:
    with small_engine() as engine:
        yield engine
