"""One control plane for all tests here, and agents as they need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent_tasks.agent_bench import Agent, Plane, load_task_image, remove_test_images
from tests.lab.fixtures import *  # noqa: F403


@pytest.fixture(scope="session")
def plane(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    load_task_image()
    plane = Plane(tmp_path_factory.mktemp("plane") / "server")
    yield plane
    plane.close()
    remove_test_images()


@pytest.fixture(scope="module")
def agent(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    agent = Agent(plane, tmp_path_factory.mktemp("agent") / "a")
    yield agent
    agent.close()


@pytest.fixture
def make_agent(plane: Plane, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """An agent of the test's own, with settings of its own."""
    made: list[Agent] = []

    def make(folder: Path | None = None, **settings: Any) -> Agent:
        made.append(Agent(plane, folder or tmp_path / f"agent-{len(made)}", **settings))
        return made[-1]

    yield make
    for agent in made:
        agent.close()
