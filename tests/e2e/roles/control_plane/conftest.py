"""A bare node for a control plane of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.roles.control_plane.server_builds import ServerBuilds
from tests.e2e.roles.control_plane.site import Site
from tests.lab import Lab


@pytest.fixture(scope="session")
def server_builds() -> ServerBuilds:
    return ServerBuilds()


@pytest.fixture(scope="package")
def site(lab: Lab, server_builds: ServerBuilds, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One node for all tests of this room: bare at first, then with whatever the tests before have brought it to."""
    made = Site(lab.nodes[0], server_builds, tmp_path_factory.mktemp("controller"))
    made.bare()
    yield made
    made.bare()
