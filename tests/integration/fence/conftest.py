"""Mounts are made here for real: the tests need root, as the agent does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent_tasks.conftest import plane  # noqa: F401
from tests.integration.fence.yard import Yard, yard_at
from tests.lab.fixtures import *  # noqa: F403


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    if os.geteuid() != 0 and not os.environ.get("CI"):
        pytest.skip("mounting needs root")
    with yard_at(tmp_path / "yard") as made:
        yield made
