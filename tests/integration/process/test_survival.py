"""Processes outlive whatever happens to the agent, to systemd's manager and to Docker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.agent_process import UNIT
from tests.integration.process.host import OUTPUT, Host
from tests.integration.waiting import until

JOURNAL = "/var/lib/heterofleet/agent/journal.db"
COUNTS = "echo begun; n=0; while [ ! -e /srv/hf-go ]; do n=$((n + 1)); sleep 0.05; done; echo done; exit 5"


@pytest.fixture
def gate(host: Host) -> Iterator[str]:
    """A file on the node whose coming ends the waiting programs."""
    host.node.sh("rm -f /srv/hf-go")
    yield "touch /srv/hf-go"
    host.node.sh("rm -f /srv/hf-go")


def test_the_agent_is_killed_and_comes_back(host: Host, gate: str) -> None:
    going, over = host.running("/bin/sh", "-c", COUNTS), host.running("/bin/sh", "-c", COUNTS)
    before = host.pid(going)
    host.node.sh(f"systemctl stop {UNIT}")
    host.node.sh(f"kill -9 {host.pid(over)}")
    until("one has ended without the agent", lambda: host.pid(over) == 0)
    host.node.run(["systemctl", "start", UNIT])
    end = host.ended(over)
    assert (end["status"], end["reason"], end["exit_code"], end["attempt"]) == ("failed", "signalled", 137, 1)
    assert host.place.agent.kill()
    host.offered("process")
    assert (host.pid(going), host.fleet.task(going)["status"]) == (before, "running")
    host.node.sh(gate)
    end = host.ended(going)
    assert (end["status"], end["exit_code"], end["log_tail"]) == ("failed", 5, "begun\ndone\n")


def test_the_manager_is_reloaded_and_executed_anew(host: Host, gate: str) -> None:
    task = host.running("/bin/sh", "-c", COUNTS)
    before = host.pid(task)
    host.node.run(["systemctl", "daemon-reload"])
    host.node.run(["systemctl", "daemon-reexec"])
    assert host.pid(task) == before
    host.node.sh(gate)
    assert host.ended(task)["exit_code"] == 5


def test_the_journal_is_lost(host: Host, gate: str) -> None:
    task = host.running("/bin/sh", "-c", COUNTS)
    before = host.pid(task)
    host.node.sh(f"systemctl kill -s KILL {UNIT}; systemctl stop {UNIT}; rm -f {JOURNAL}*; systemctl start {UNIT}")
    host.offered("process")
    until("it is held again", lambda: [one for one in host.held() if one["task_id"] == task], 60)
    host.node.sh(gate)
    end = host.ended(task)
    assert (before > 0, end["exit_code"], end["attempt"]) == (True, 5, 1)


@pytest.mark.case("FC-010")
def test_the_machine_is_restarted_under_it(host: Host, gate: str) -> None:
    """Its record goes with /run, and its unit with systemd; what it printed is still told."""
    task = host.running("/bin/sh", "-c", COUNTS)
    until("it has printed", lambda: host.node.sh(f"cat {OUTPUT}/*/0").startswith("begun"))
    host.node.power_cut()
    host.node.power_on()
    end = host.ended(task, 120)
    assert (end["status"], end["reason"], end["reason_class"]) == ("failed", "host_restarted", "infrastructure")
    assert end["log_tail"] == "begun\n"


def test_docker_is_away(host: Host, gate: str) -> None:
    """Docker is not asked about processes: they start, run and end without it."""
    task = host.running("/bin/sh", "-c", COUNTS)
    host.node.stop_engine()
    try:
        until("the node says that it has no Docker", lambda: host.view()["exec_mode"] == "baremetal")
        assert host.view()["drivers"] == ["process"]
        assert host.run("exit 4")["exit_code"] == 4
        host.node.sh(gate)
        assert host.ended(task)["exit_code"] == 5
    finally:
        host.node.start_engine()
    host.offered("docker", "process")
