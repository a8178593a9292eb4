"""Somebody exchanges a volume's folder and a link to a trap in a loop, while containers are started with it."""

from __future__ import annotations

import pytest

from tests.integration.fence.shipping import ROOT, run_there, shipped
from tests.lab import Node

UNIT = ROOT / "templates" / "heterofleet-agent.service.j2"
LIFE = ("Type", "ExecStart", "Environment", "WatchdogSec", "Restart", "RestartSec", "KillMode", "TimeoutStopSec")
STARTS = 500
WORKERS = 4


@pytest.mark.case("FC-030")
def test_no_container_gets_what_was_swapped_in(node: Node) -> None:
    """A path that was checked and then given to the engine by its name led wherever its name led by then."""
    with shipped(node):
        seen = run_there(node, "tests.integration.fence.swap_program", STARTS, WORKERS, timeout=400)
    assert seen["strange"] == []
    assert seen["swapping"], "the exchange went on to the end"
    assert seen["control"], "a start by path gets the trap: the exchange is fast enough to show something"
    assert (seen["trap"], seen["swapped"], seen["alarm"], seen["left"]) == (0, 0, [], [])
    assert seen["right"] >= STARTS
    assert seen["refused"] > 0, "the exchange was met before the check as well"


def test_the_agents_unit_lets_it_hold_volumes(node: Node) -> None:
    """A unit that gave the agent a mount namespace of its own, or took mounting away, would end all its volumes."""
    service = UNIT.read_text().partition("[Service]")[2].partition("[Install]")[0]
    lines = [line for line in service.splitlines() if "=" in line and not line.startswith("#")]
    limits = [line for line in lines if line.partition("=")[0] not in LIFE]
    assert any(line.startswith("SystemCallFilter=") for line in limits)
    around = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", *(f"--property={line}" for line in limits)]
    with shipped(node):
        seen = run_there(node, "tests.integration.fence.swap_program", 2, 1, timeout=120, around=around)
    assert (seen["strange"], seen["trap"], seen["left"]) == ([], 0, [])
    assert seen["right"] >= 2
