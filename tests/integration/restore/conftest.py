from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.restore.fleet import Fleet
from tests.lab import Lab
from tests.lab.fixtures import *  # noqa: F403


@pytest.fixture(scope="module")
def fleet(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A control plane and two agents at work, which share the engine of one lab node."""
    made = Fleet(tmp_path_factory.mktemp("fleet"), lab.node(1))
    for agent in (made.a, made.b):
        agent.start()
    for agent in (made.a, made.b):
        agent.registered()
    yield made
    made.close()
