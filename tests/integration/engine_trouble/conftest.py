"""One real agent on one node with a real engine, for all tests of what may happen to that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fleet import AGENT, fleet
from tests.integration.engine_trouble.trouble import Trouble
from tests.lab import Lab
from tests.lab.fixtures import lab  # noqa: F401

PLANE = {"heartbeat_interval_s": 1, "start_grace_s": 1}


@pytest.fixture(scope="package")
def whole_trouble(lab: Lab) -> Iterator[Trouble]:
    # The agent asks the engine itself, as it does in the field: who stands in between hides whose socket that is.
    direct = {name: value for name, value in AGENT.items() if name != "HETEROFLEET_DOCKER_HOST"}
    direct |= {"HETEROFLEET_PROCESS_DRIVER": "true", "HETEROFLEET_WORKERS": "4"}
    with fleet([lab.node(1)], name="trouble", plane=PLANE, agent=direct, first_port=2) as made:
        yield Trouble(made)


@pytest.fixture
def trouble(whole_trouble: Trouble) -> Iterator[Trouble]:
    """The engine is well and nothing runs, before and after the test."""
    whole_trouble.make_whole()
    yield whole_trouble
    whole_trouble.make_whole()
