"""Three nodes for a whole file of tests: its tests go on from each other, because each run of Ansible is dear."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.roles.ansible import Fleet
from tests.e2e.roles.bare import make_bare, publish
from tests.e2e.roles.builds import Builds
from tests.integration.distribution.site import KEY
from tests.lab import Lab
from tests.lab.control_plane import ControlPlane


@pytest.fixture(scope="module")
def room(lab: Lab, plane: ControlPlane, builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Bare nodes before and after the file; the first builds are staged, and the key lies on the nodes for scripts."""
    nodes = lab.nodes[:3]
    make_bare(nodes)
    for node in nodes:
        node.put(KEY, plane.key, 0o600)
    yield Fleet(plane, nodes, tmp_path_factory.mktemp("room"), fleet_builds_dir=str(builds.first))
    publish(plane, builds.first)
    make_bare(nodes)
    for node in nodes:
        node.run(["rm", "-f", KEY])
