"""One fleet behind fault proxies for all scenarios here, on this run's nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fleet import Fleet
from tests.faults.fleet import fleet as installed
from tests.lab import Lab
from tests.lab.fixtures import lab, node  # noqa: F401

MOST_NODES = 3


@pytest.fixture(scope="package")
def whole_fleet(lab: Lab) -> Iterator[Fleet]:
    with installed(lab.nodes[:MOST_NODES], watch_commits=True) as built:
        yield built


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Iterator[Fleet]:
    """The fleet without faults, before and after; each test begins with no task to answer for."""
    whole_fleet.good()
    whole_fleet.forget_tasks()
    yield whole_fleet
    whole_fleet.good()
