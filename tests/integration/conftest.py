from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.postgres import Postgres, cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL cluster for the whole session; each test takes a database of its own."""
    with cluster() as made:
        yield made
