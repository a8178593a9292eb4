from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.postgres import Postgres
from tests.integration.server_core.plane import Agent, Plane, running


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    made: Postgres = request.getfixturevalue("postgres")
    with made.database() as url:
        yield url.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def agent(plane: Plane) -> Agent:
    return Agent(plane)
