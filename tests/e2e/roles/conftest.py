"""What every room of role tests has: the builds of this checkout, a control plane, and nodes that are bare at first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.roles.ansible import Fleet
from tests.e2e.roles.bare import make_bare, publish
from tests.e2e.roles.builds import Builds
from tests.lab import Lab
from tests.lab.control_plane import ControlPlane
from tests.lab.fixtures import *  # noqa: F403

NODES = 3
"""At most: the lane of these tests has no more."""


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
