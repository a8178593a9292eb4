"""A real fleet of one node whose agent finds cards of three more vendors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fleet import AGENT, fleet
from tests.integration.card_giving.machine import Machine, equip, strip
from tests.integration.waiting import until
from tests.lab import Lab
from tests.lab.fixtures import lab  # noqa: F401

PLANE = {"heartbeat_interval_s": 1, "start_grace_s": 1}
SETTINGS = {**AGENT, "HETEROFLEET_HARDWARE__DETECT": "all"}
FIRST_PORT = 4
VENDORS = ("ascend", "hygon", "kunlun")


@pytest.fixture(scope="package")
def whole_machine(lab: Lab) -> Iterator[Machine]:
    node = lab.node(1)
    equip(node)
    try:
        with fleet([node], name="giving", plane=PLANE, agent=SETTINGS, first_port=FIRST_PORT) as made:
            machine = Machine(made)
            until("all cards are told", lambda: [len(machine.cards(vendor)) for vendor in VENDORS] == [2, 2, 2])
            yield machine
    finally:
        strip(node)


@pytest.fixture
def machine(whole_machine: Machine) -> Iterator[Machine]:
    yield whole_machine
    whole_machine.end()
