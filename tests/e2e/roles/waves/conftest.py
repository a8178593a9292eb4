"""One fleet for all tests here: deployed once, with tasks that run to the last test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.roles.ansible import Fleet
from tests.e2e.roles.bare import make_bare, publish
from tests.e2e.roles.builds import Builds
from tests.e2e.roles.waves.site import Site
from tests.lab import Lab
from tests.lab.control_plane import ControlPlane


@pytest.fixture(scope="package")
def site(lab: Lab, plane: ControlPlane, builds: Builds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    nodes = lab.nodes[:3]
    make_bare(nodes)
    made = Site(lab, plane, Fleet(plane, nodes, tmp_path_factory.mktemp("waves"), fleet_wave=[1, "100%"]), builds)
    made.offer("first")
    made.play("deploy.yml", fleet_wave=["100%"])
    made.start_tasks()
    yield made
    publish(plane, builds.first)
    make_bare(nodes)
