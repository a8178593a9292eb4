"""One real fleet of one node, and one long outage of that node with a task of every kind on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fleet import Fleet, fleet
from tests.lab import Lab
from tests.lab.fixtures import lab  # noqa: F401

LOST_AFTER_BEATS = 6
PLANE = {"heartbeat_interval_s": 1, "start_grace_s": 1, "lost_after_beats": LOST_AFTER_BEATS}


@pytest.fixture(scope="module")
def one_node(lab: Lab) -> Iterator[Fleet]:
    lab.node(1).cards.reset()
    with fleet([lab.node(1)], name="lost-node", plane=PLANE, first_port=2) as made:
        yield made
        made.places[0].node.heal_network()
