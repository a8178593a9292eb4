"""A task with a model and no image, from the control plane to a container of the engine that is here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import model_files as files
from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.waiting import until
from tests.lab import engine, task_image
from tests.lab.process import run

ENGINE = "hf-engines/vllm:1"
OTHER = "10.0.0.5:5000/hf-engines/vllm:1"
PRIORITIES = {"safetensors": [f"vllm={ENGINE}"]}


@pytest.fixture
def images(plane: Plane) -> Iterator[None]:
    for name in (ENGINE, OTHER):
        engine.docker("tag", task_image.NAME, name)
    yield
    for name in (ENGINE, OTHER):
        run(["docker", "rmi", name], check=False)


def last(agent: Agent, section: str) -> Any:
    """The newest word of the node's beats on this."""
    beats = [body for _, path, body in agent.proxy.seen if path.endswith("/heartbeat")]
    return next((beat[section] for beat in reversed(beats) if section in beat), None)


def served(plane: Plane, agent: Agent, model: Path, **spec: Any) -> str:
    return agent.submit(
        *("serve", "8000", "1", "forever"), image=None, kind="inference", model=str(model), **{"name": "m", **spec}
    )


def test_a_model_gets_the_engine_that_is_here(
    plane: Plane, images: None, make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    data = tmp_path / "a" / "data"
    model = data / "m"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(files.safetensors())
    files.sharded(data / "gap", 3, missing=(3,))
    agent = make_agent(tmp_path / "a", model_scan_dirs=[str(data)], engine_priorities=PRIORITIES)

    until("the models are told", lambda: last(agent, "discovered_models"))
    told = {row["path"]: row["state"] for row in last(agent, "discovered_models")}
    assert told[str(model)] == "complete"
    assert told[str(data / "gap")] == "incomplete"
    assert last(agent, "models_scan")["partial"] is False
    until("the engines are told", lambda: last(agent, "engines") is not None)
    assert last(agent, "engines") == [{"name": "vllm", "version": "1", "image": ENGINE, "source": "image"}]

    task = served(plane, agent, model)
    found = agent.running(task)
    assert found["Config"]["Image"] == ENGINE
    [mount] = found["Mounts"]
    assert (mount["Destination"], mount["RW"]) == (str(model), False)
    until("its engine is ready", lambda: plane.task(task)["ready"])
    until("what it serves is told", lambda: [row for row in last(agent, "discovered_models")
                                             if row["source"] == "engine"])  # fmt: skip
    [row] = [row for row in last(agent, "discovered_models") if row["source"] == "engine"]
    assert (row["name"], row["state"]) == ("lab-model", "complete")

    agent.kill()
    agent.start()
    until("the task is watched again", lambda: plane.task(task)["ready"] and plane.task(task)["phase"] == "running")
    assert agent.running(task)["Id"] == found["Id"]
    plane.stop_task(task)
    assert plane.ended(task)["status"] == "stopped"

    broken = plane.ended(served(plane, agent, data / "gap"))
    assert (broken["status"], broken["reason"]) == ("failed", "profile_rejected")
    assert "model-00003-of-00003.safetensors is missing" in broken["error"]

    engine.docker("rmi", ENGINE)
    gone = plane.ended(served(plane, agent, model))
    assert (gone["status"], gone["reason"]) == ("failed", "image_not_found")
    assert ENGINE in gone["error"], "the image of another registry with the same name counts for nothing"
    until("the next probe replaces the list", lambda: last(agent, "engines") == [], 60)


def test_a_model_that_is_not_there_or_not_allowed(
    plane: Plane, make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    (tmp_path / "a" / "data").mkdir(parents=True)
    agent = make_agent(tmp_path / "a", engine_priorities=PRIORITIES)
    tasks = {path: served(plane, agent, path) for path in (Path("/etc"), tmp_path / "a" / "data" / "nowhere")}
    for path, task in tasks.items():
        ended = plane.ended(task)
        assert (ended["status"], ended["reason"]) == ("failed", "volume_rejected")
        assert str(path) in ended["error"]
