"""One control plane and one mirror for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.roles.distribution.three_places import Places, three_places


@pytest.fixture(scope="package")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with three_places(tmp_path_factory.mktemp("places")) as made:
        yield made
