"""A node whose engine's disk fills up: before a pull, during one, when a container is made, while a task runs.

Everything is real: a Docker Engine on an ext4 file system of 256 MiB, a registry, an agent, a control plane.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.agent_tasks.stub_registry import StubRegistry
from tests.integration.disk.small_engine import SIZE_MIB, SmallEngine
from tests.integration.waiting import until
from tests.lab import task_image

LEAST_MIB = 16


@pytest.fixture
def node(make_agent: Callable[..., Agent], engine: SmallEngine) -> Agent:
    return make_agent(docker_host=engine.host, disk_min_free_mib=LEAST_MIB)


def handed_back(plane: Plane, task_id: str) -> dict[str, Any]:
    """The attempt that came back for lack of room; the task goes on waiting for a better node."""
    until(f"{task_id} is handed back", lambda: "disk_full" in str(plane.task(task_id)["attempts"]), 60)
    task = plane.task(task_id)
    attempt = dict(task["attempts"][0])
    assert (attempt["reason"], attempt["reason_class"]) == ("disk_full", "infrastructure")
    assert task["status"] in ("pending", "scheduled")
    plane.stop_task(task_id)
    return attempt


def disks(plane: Plane, node: Agent) -> dict[str, dict[str, Any]]:
    status, body = plane.call("GET", f"/nodes/{node.node_id}")
    assert status == 200, body
    return {disk["path"]: disk for disk in body["host"]["disks"] or ()}


def emptied(engine: SmallEngine) -> None:
    """Until no container is left: what could not be removed from a full disk goes with a later reconciliation. The
    next test has the same engine and another agent, which judges nothing of this one's."""
    until("no container is left", lambda: engine.docker("ps", "-aq") == "", 120)


@pytest.mark.case("FC-032")
def test_inodes_gone_while_space_is_free(plane: Plane, node: Agent, engine: SmallEngine) -> None:
    """A disk with 33 GB free had no inode left: image layers had taken all, and the node kept accepting work."""
    root = str(engine.root)
    running = node.submit("forever")
    plane.phase(running, "running")
    with engine.without_inodes():
        shown = until("the beat says so", lambda: disks(plane, node).get(root, {}).get("free_inodes") == 0)
        assert shown
        assert disks(plane, node)[root]["free_mib"] > LEAST_MIB
        there = handed_back(plane, node.submit("exit", "0"))
        assert f"{root} has 0 inodes free" in there["error"]
        assert "to make a container" in there["error"]
        missing = handed_back(plane, node.submit("exit", "0", image="127.0.0.1:1/none:1"))
        assert "0 inodes free, 10000 are wanted" in missing["error"]
        assert plane.task(running)["status"] == "running"
        plane.stop_task(running)
        assert plane.ended(running)["status"] == "stopped", "what ran went on, and its end was told"
    emptied(engine)


def test_no_room_before_a_pull(plane: Plane, node: Agent, engine: SmallEngine) -> None:
    engine.docker("build", "-q", "-", input=f"FROM {task_image.NAME}\nLABEL a=b\n".encode())
    before = engine.docker("images", "-aq"), engine.docker("ps", "-aq")
    with engine.filled(LEAST_MIB - 4):
        error = handed_back(plane, node.submit("exit", "0", image="127.0.0.1:1/none:1"))["error"]
    assert f"{engine.root} has " in error
    assert f"{LEAST_MIB} MiB are wanted (disk_min_free_mib) before a pull" in error
    assert "what may be removed there: 1 image(s) without a name" in error
    assert "docker image prune" in error
    assert (engine.docker("images", "-aq"), engine.docker("ps", "-aq")) == before, "nothing is removed by itself"


def test_a_disk_that_fills_during_the_pull(plane: Plane, node: Agent, engine: SmallEngine) -> None:
    big = task_image.image().plus({"ballast": secrets.token_bytes((SIZE_MIB // 2) << 20)})
    before = engine.docker("images", "-q")
    with StubRegistry(big) as registry, engine.filled(SIZE_MIB * 5 // 8):
        error = handed_back(plane, node.submit("exit", "0", image=f"{registry.address}/big:1"))["error"]
    assert "no space left on device" in error
    assert "docker system df" in error
    assert engine.docker("images", "-q") == before
    task_id = node.submit("print", "room again")
    assert plane.ended(task_id)["status"] == "completed"
    emptied(engine)


def test_no_room_for_a_container(plane: Plane, node: Agent, engine: SmallEngine) -> None:
    running = node.submit("print", "before", "sleep", "4", "print", "after", "exit", "7")
    plane.phase(running, "running")
    with engine.filled(0):
        error = handed_back(plane, node.submit("exit", "0"))["error"]
        assert "MiB free" in error
        end = plane.ended(running)
        assert (end["status"], end["exit_code"]) == ("failed", 7), "its end is told while the disk is full"
    emptied(engine)


@pytest.mark.case("FC-011")
def test_finished_and_told_containers_go_with_their_anonymous_volumes(
    plane: Plane, node: Agent, engine: SmallEngine
) -> None:
    """Containers of jobs were removed, their unnamed volumes stayed, and disks filled up over weeks."""
    image = f"with-volume-{secrets.token_hex(3)}:1"
    engine.docker("build", "-q", "-t", image, "-", input=f"FROM {task_image.NAME}\nVOLUME /scratch\n".encode())
    named = engine.docker("volume", "create", f"kept-{secrets.token_hex(3)}")
    task_id = node.submit("bytes", "10", "sleep", "1", image=image)
    until("it has its volume", lambda: len(engine.docker("volume", "ls", "-q").split()) == 2)
    assert plane.ended(task_id)["status"] == "completed"
    until("only the named one is left", lambda: engine.docker("volume", "ls", "-q").split() == [named])
    assert engine.docker("ps", "-aq") == ""
    engine.docker("volume", "rm", named)
