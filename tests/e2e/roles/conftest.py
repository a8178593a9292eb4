"""What every room of role tests has: the builds of this checkout, a control plane, and nodes that are bare at first."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.roles.ansible import Fleet
from tests.e2e.roles.builds import Builds
from tests.lab import Lab, Node
from tests.lab.control_plane import ControlPlane
from tests.lab.fixtures import *  # noqa: F403

NODES = 3
"""At most: the lane of these tests has no more."""
# Quicker than the uninstall script, and it knows nothing of what was installed how.
BARE = """
systemctl stop heterofleet-agent 2>/dev/null || :
systemctl disable --quiet heterofleet-agent 2>/dev/null || :
docker ps -aq --filter label=heterofleet.task | xargs -r docker rm -f -v >/dev/null
awk '$2 ~ "^/run/heterofleet/" {print $2}' /proc/mounts | sort -r | xargs -r umount
rm -rf --one-file-system /opt/heterofleet /etc/heterofleet /var/lib/heterofleet /run/heterofleet \
    /usr/local/bin/heterofleet-agent /etc/systemd/system/heterofleet-agent.service \
    /etc/systemd/system/heterofleet-agent.service.d
systemctl daemon-reload
systemctl reset-failed heterofleet-agent 2>/dev/null || :
"""


def make_bare(nodes: Sequence[Node]) -> None:
    """As if there had never been an agent on these nodes."""
    for node in nodes:
        node.sh(BARE)


def publish(plane: ControlPlane, builds: Path) -> None:
    """From now on the control plane hands out these builds and no others."""
    shutil.rmtree(plane.builds_dir, ignore_errors=True)
    shutil.copytree(builds, plane.builds_dir)


@pytest.fixture(scope="session")
def builds() -> Builds:
    return Builds()


@pytest.fixture(scope="session")
def plane(lab: Lab, builds: Builds) -> Iterator[ControlPlane]:
    """One control plane on this machine for all rooms, with the first builds. Who changes what it hands out puts it
    back (``publish``)."""
    made = ControlPlane("roles")
    made.remove()
    made.start()
    publish(made, builds.first)
    yield made
    made.remove()


@pytest.fixture
def fleet(lab: Lab, plane: ControlPlane, builds: Builds, tmp_path: Path) -> Iterator[Fleet]:
    """All nodes of this share without an agent before and after, the first builds staged on the controller."""
    nodes = lab.nodes[:NODES]
    make_bare(nodes)
    yield Fleet(plane, nodes, tmp_path, fleet_builds_dir=str(builds.first))
    make_bare(nodes)
