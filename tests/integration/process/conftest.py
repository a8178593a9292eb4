"""One real fleet of one node whose agent runs plain processes as systemd units."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fleet import AGENT, PLANE, fleet
from tests.integration.process.host import Host, clear
from tests.lab import Lab
from tests.lab.fixtures import lab  # noqa: F401

SETTINGS = {"HETEROFLEET_PROCESS_DRIVER": "true", "HETEROFLEET_LOG_MAX_MIB": "1"}


@pytest.fixture(scope="package")
def whole_host(lab: Lab) -> Iterator[Host]:
    node = lab.node(1)
    clear(node)
    try:
        with fleet([node], name="process", plane=PLANE, agent={**AGENT, **SETTINGS}, first_port=2) as made:
            host = Host(made)
            host.offered("process")
            yield host
    finally:
        clear(node)


@pytest.fixture
def host(whole_host: Host) -> Iterator[Host]:
    """The node with nothing alive on it before and after the test."""
    yield whole_host
    whole_host.end()
