"""A process task gets what it was given, and nothing of the agent's, the engine's or the machine's manager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.process.host import Host

INTRUDER = (Path(__file__).parent / "intruder.py").read_text()
MEMBER = "hf-member"
SECRET = "not-for-any-other-eye-7c1d"


@pytest.fixture(scope="module")
def member(whole_host: Host) -> Iterator[str]:
    """A user of the node who may talk to the engine."""
    whole_host.node.sh(f"id {MEMBER} >/dev/null 2>&1 || useradd --system -G docker,adm {MEMBER}")
    yield MEMBER
    whole_host.node.sh(f"userdel {MEMBER}")


@pytest.mark.parametrize("user", [None, "nobody", "1234:1234", MEMBER])
def test_nothing_of_the_agent_is_in_reach(host: Host, member: str, user: str | None) -> None:
    agent = host.show("", "MainPID", unit="heterofleet-agent.service")["MainPID"]
    members = {} if user is None else {"user": user}
    end = host.ended(host.submit("python3", "-c", INTRUDER, agent, **members))
    lines = end["log_tail"].splitlines()
    assert end["status"] == "completed", end
    assert "\n".join(line for line in lines if not line.startswith("refused ")) == ""
    assert len(lines) > 40
    assert host.fleet.plane.key not in end["log_tail"]
    assert host.show("", "MainPID", unit="heterofleet-agent.service")["MainPID"] == agent
