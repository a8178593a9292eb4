"""One real fleet of one node for all tests of sleep and wake; kills at each of their steps are kill points."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fleet import fleet
from tests.integration.sleep.sleeper import Sleepers
from tests.lab import Lab
from tests.lab.fixtures import lab  # noqa: F401

PLANE = {"heartbeat_interval_s": 1, "start_grace_s": 1, "card_lost_after_beats": 2, "card_back_after_beats": 2}


@pytest.fixture(scope="package")
def all_sleepers(lab: Lab) -> Iterator[Sleepers]:
    lab.node(1).cards.reset()
    with fleet([lab.node(1)], name="sleep", plane=PLANE, first_port=2) as made:
        yield Sleepers(made)


@pytest.fixture
def sleepers(all_sleepers: Sleepers) -> Iterator[Sleepers]:
    """The fleet with nothing alive on it before and after the test; all invariants hold then, over all that ran."""
    yield all_sleepers
    all_sleepers.end()
