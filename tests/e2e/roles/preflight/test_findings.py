"""Faults planted on real nodes, and the one table of all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.roles.ansible import Fleet
from tests.e2e.roles.preflight.preflight import GONE, forget, play, rows, table, went_on, with_gone
from tests.lab import Node
from tests.lab.control_plane import ControlPlane
from tests.lab.simulated_node import SimulatedNode

pytestmark = pytest.mark.timeout(900)

# A Python of this node before all others, in another time.
FAST_PYTHON = """#!/bin/sh
LD_PRELOAD=$(echo /usr/lib/*/faketime/libfaketime.so.1) FAKETIME=+90s exec /usr/bin/python3 "$@"
"""
# No engine (neither a socket nor the program), a full /opt from which nothing starts, with what a run left that was
# cut short, and another agent on PATH.
PLANT = """
systemctl stop docker.socket docker.service
mount --bind /dev/null /usr/sbin/dockerd
mount -t tmpfs -o size=8m,noexec tmpfs /opt
mkdir -p /opt/heterofleet/.undo
cp /bin/true /usr/local/sbin/heterofleet-agent
"""
CLEAR = """
for place in /opt /usr/sbin/dockerd /run/systemd /usr/bin/python3.11; do
    while mountpoint -q "$place"; do umount "$place"; done
done
if [ -f /root/kept/ops ]; then mv /root/kept/ops /etc/sudoers.d/; fi
rm -rf /root/kept
rm -f /usr/local/sbin/heterofleet-agent /usr/local/sbin/python3 /root/old-python
systemctl start docker.service
"""
KEPT = "/root/kept"
OLD_PYTHON = """#!/bin/sh
test "$1" = -V || exit 1
echo Python 3.8.18
"""


@pytest.fixture
def pair(fleet: Fleet) -> Iterator[tuple[Fleet, Node, Node]]:
    first, second = with_gone(fleet)
    forget(first, second)
    yield fleet, first, second
    for node in (first, second):
        node.sh(CLEAR)
    forget(first, second)


@contextmanager
def beating(node: SimulatedNode) -> Iterator[None]:
    """It is heard as long as this lasts."""
    assert node.beat()[0] == 200
    done = threading.Event()

    def beat() -> None:
        while not done.wait(2):
            node.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def wanted(found: dict[str, str], host: str, check: str, *words: str) -> None:
    said = found.pop(f"{host} {check}", "")
    assert all(word in said for word in words), f"{host} {check}: {said!r} of {sorted(found)}"


@pytest.mark.case("FC-062")
@pytest.mark.case("FC-068")
def test_all_findings_of_all_hosts_in_one_table(pair: tuple[Fleet, Node, Node], plane: ControlPlane) -> None:
    """Not the first failure only, in check mode, too; a host without a usable Python gets a sentence, no traceback."""
    fleet, first, second = pair
    taken = SimulatedNode(plane.url, plane.key, "taken")
    fleet.host_vars[first.name]["agent_node_id"] = "taken"
    fleet.host_vars[second.name]["agent_labels"] = {"rack": 12}
    first.sh(PLANT)
    first.put("/usr/local/sbin/python3", FAST_PYTHON, 0o755)
    second.put("/root/old-python", OLD_PYTHON, 0o755)
    second.run(["mount", "--bind", "/root/old-python", "/usr/bin/python3.11"])
    with beating(taken):
        played = play(fleet, "--check", "--diff")

    assert played.rc == 2 and not went_on(first) and not went_on(second)
    text = table(played)
    assert text.startswith("Preflight: 3 of 3 hosts refused, 3 warnings.\n\nREFUSED\n")
    refused, _, warned = text.partition("\nWARNINGS\n")
    found = rows(refused)
    wanted(found, first.name, "Docker", "no Docker Engine", "docker_engine")
    wanted(found, first.name, "disk", "8 MiB free at /opt/heterofleet", "noexec")
    wanted(found, first.name, "node_id", "taken held by taken, which is online")
    wanted(found, second.name, "Python", "Python 3.8.18", "Python 3.9 to 3.14 on", "install one")
    wanted(found, second.name, "agent_labels", "rack: 12", 'rack: "12"')
    wanted(found, GONE, "SSH", "198.18.0.250", "a connection")
    assert found == {}
    found = rows(warned)
    wanted(found, first.name, "clock", " s ahead of the control plane", "at most 30 s")
    wanted(found, first.name, "installation", "cut short")
    wanted(found, first.name, "copies", "/usr/local/sbin/heterofleet-agent")
    assert found == {}
    # Each host's own reasons, all of them.
    reason = played.outcomes[first.name]["reason"]
    assert all(f"{check}: found" in reason for check in ("Docker", "disk", "node_id"))


@pytest.mark.case("FC-060")
def test_a_host_without_systemd_and_users_that_may_not_become_root(pair: tuple[Fleet, Node, Node]) -> None:
    """The test is /run/systemd/system; who is not root, and cannot be, is told so by name, and not by a traceback."""
    fleet, first, second = pair
    del fleet.host_vars[GONE]
    fleet.host_vars[second.name]["ansible_user"] = "ops"
    fleet.host_vars["again"] = {**fleet.host_vars[second.name], "ansible_become": True}
    fleet.groups = {"nodes": list(fleet.host_vars)}
    first.run(["mount", "-t", "tmpfs", "tmpfs", "/run/systemd"])
    second.sh(f"mkdir -p {KEPT}; mv /etc/sudoers.d/ops {KEPT}/")

    played = play(fleet)

    assert played.rc == 2 and set(played.outcomes) == {first.name, second.name, "again"}
    found = rows(table(played))
    wanted(found, first.name, "systemd", "no /run/systemd/system", "started")
    wanted(found, second.name, "root", "the user ops", "ansible_become: true")
    wanted(found, "again", "sudo", "Missing sudo password", "ansible_become_password")
    wanted(found, second.name, "ansible_host", f"{second.address}, which again has, too")
    wanted(found, "again", "ansible_host", f"{second.address}, which {second.name} has, too")
    assert found == {} and "raceback" not in played.output

    first.run(["umount", "/run/systemd"])
    second.sh(f"mv {KEPT}/ops /etc/sudoers.d/")
    fleet.host_vars[second.name]["ansible_become"] = True
    del fleet.host_vars["again"]
    fleet.groups = {"nodes": list(fleet.host_vars)}
    assert play(fleet).rc == 0 and went_on(first) and went_on(second)
