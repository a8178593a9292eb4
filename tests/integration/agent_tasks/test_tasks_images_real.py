"""Images: what is here, what registries refuse, pulls that stall, credentials."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.agent.drivers.docker import DockerDriver
from runtime.agent.instructions.images import same_repository
from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.agent_tasks.stub_registry import StubRegistry
from tests.integration.waiting import until
from tests.lab import Lab, engine, task_image

IMAGE = task_image.image()


def fresh() -> str:
    """A repository that this engine has never seen."""
    return f"app-{secrets.token_hex(4)}"


@pytest.mark.case("FC-025")
def test_a_pull_that_never_ends(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    """A pull stalled in the middle of a layer and the job hung for hours; others waited behind it."""
    agent = make_agent(pull_attempts=2, pull_stall_s=4, workers=2)
    image = IMAGE.plus({"big": secrets.token_bytes(1 << 20)})
    with StubRegistry(image, stall=True) as registry:
        stuck = [agent.submit("exit", "0", image=f"{registry.address}/{fresh()}:1") for _ in range(3)]
        for task_id in stuck[:2]:
            plane.phase(task_id, "pulling")
        other = agent.submit("exit", "0")
        first = plane.ended(other)
        assert first["status"] == "completed"
        plane.stop_task(stuck[2])
        assert plane.ended(stuck[2])["reason"] == "stopped_by_operator"
        for task_id in stuck[:2]:
            task = plane.ended(task_id)
            assert (task["status"], task["reason"]) == ("failed", "pull_timeout")
            assert task["finished_at"] > first["finished_at"], "nobody waited behind it"
            assert "Downloading" in task["error"] or "Pulling" in task["error"]


@pytest.mark.parametrize(
    ("error", "reason", "tries"),
    [
        ((403, "DENIED", "denied"), "registry_auth_failed", 1),
        ((404, "MANIFEST_UNKNOWN", "manifest unknown"), "image_not_found", 1),
        ((429, "TOOMANYREQUESTS", "toomanyrequests"), "image_pull_failed", 2),
        ((503, "UNAVAILABLE", "unavailable"), "image_pull_failed", 2),
    ],
)
def test_a_registry_that_refuses(
    plane: Plane, make_agent: Callable[..., Agent], error: tuple[int, str, str], reason: str, tries: int
) -> None:
    agent = make_agent(pull_attempts=2)
    with StubRegistry(IMAGE, error=error) as registry:
        task_id = agent.submit("exit", "0", image=f"{registry.address}/{fresh()}:1")
        task = plane.ended(task_id)
        assert (task["status"], task["reason"]) == ("failed", reason)
        assert error[2] in task["error"].lower()
        assert agent.log.read_text().count("pull of") == (tries if tries > 1 else 0)


@pytest.mark.case("FC-027")
def test_a_private_image_and_its_credentials(plane: Plane, agent: Agent, lab: Lab) -> None:
    """The registry's password stayed in a file, and later tasks used it."""
    tag = secrets.token_hex(4)
    private = IMAGE.plus({"private": secrets.token_bytes(16)})
    name = f"lab/{fresh()}:{tag}"
    lab.registry.push(private, name)
    image = f"{lab.registry.address}/{name}"
    without = agent.submit("exit", "0", image=image)
    assert plane.ended(without)["reason"] == "registry_auth_failed"
    auth = {"server": lab.registry.address, "username": lab.registry.user, "password": lab.registry.password}
    task_id = agent.submit("print", "from the private image", image=image, registry_auth=auth)
    assert plane.ended(task_id)["status"] == "completed"
    agent.gone(task_id)
    engine.docker("rmi", image)
    again = agent.submit("exit", "0", image=image)
    assert plane.ended(again)["reason"] == "registry_auth_failed"
    places = [path for path in agent.folder.rglob("*") if path.is_file()]
    assert any(path.name == "journal.db" for path in places)
    for path in [*places, Path(f"/proc/{agent.pid}/cmdline"), Path(f"/proc/{agent.pid}/environ")]:
        assert lab.registry.password.encode() not in path.read_bytes(), path


@pytest.mark.case("FC-024")
def test_a_digest_that_is_here_is_not_pulled(plane: Plane, agent: Agent) -> None:
    """An image pinned by digest has no tag: it was pulled every time, and failed without a network."""
    image = IMAGE.plus({"pinned": secrets.token_bytes(16)})
    repository = fresh()
    with StubRegistry(image) as registry:
        tagged = f"{registry.address}/{repository}:1"
        engine.docker("pull", "-q", tagged)
        digest = engine.docker("inspect", "-f", "{{index .RepoDigests 0}}", tagged)
        engine.docker("rmi", tagged)
        engine.docker("pull", "-q", digest)
    before = agent.log.read_text().count("pull of")
    task_id = agent.submit("exit", "0", image=digest)
    assert plane.ended(task_id)["status"] == "completed"
    assert agent.log.read_text().count("pull of") == before
    images = DockerDriver().images
    assert images.present(digest)
    assert not images.present(digest[:-8] + "00000000")
    assert not images.present(tagged)
    status, request = plane.call("POST", "/image-requests", {"node_id": agent.node_id, "op": "check", "image": digest})
    assert status in (201, 202), request
    done = until("the check is answered", lambda: look(plane, request["id"], ("succeeded", "failed")))
    assert done["result"]["present"] is True


def look(plane: Plane, request_id: str, states: tuple[str, ...]) -> dict[str, object] | None:
    status, body = plane.call("GET", f"/image-requests/{request_id}")
    assert status == 200, body
    return body if body["status"] in states else None


def test_image_instructions(plane: Plane, agent: Agent) -> None:
    image = IMAGE.plus({"wanted": secrets.token_bytes(16)})
    with StubRegistry(image) as registry:
        name = f"{registry.address}/team/{fresh()}:1"
        for op, expected in (("check", False), ("pull", True), ("check", True)):
            _, request = plane.call("POST", "/image-requests", {"node_id": agent.node_id, "op": op, "image": name})
            done = until(op, lambda: look(plane, request["id"], ("succeeded", "failed")))  # noqa: B023
            assert done["result"]["present"] is expected, done
        body = {"node_id": agent.node_id, "op": "check", "image": name[:-1] + "other", "match": "repository"}
        _, request = plane.call("POST", "/image-requests", body)
        done = until("repository", lambda: look(plane, request["id"], ("succeeded", "failed")))
        assert name in done["result"]["images"]
    _, request = plane.call("POST", "/image-requests", {"node_id": agent.node_id, "op": "pull", "image": name + "x"})
    done = until("a pull that fails", lambda: look(plane, request["id"], ("failed",)), 60)
    assert "refused" in str(done["error"])


@pytest.mark.parametrize(
    ("name", "wanted", "same"),
    [
        ("a/b:1", "a/b", True),
        ("a/b:1", "a/b@sha256:" + "0" * 64, True),
        ("10.0.0.5:5000/a/b:1", "a/b:1", False),
        ("a/bc:1", "a/b", False),
        ("ubuntu:1", "docker.io/library/ubuntu", True),
    ],
)
def test_same_repository(name: str, wanted: str, same: bool) -> None:
    assert same_repository(name, wanted) is same


def test_a_full_disk_hands_the_task_back(plane: Plane, make_agent: Callable[..., Agent]) -> None:
    """No space failed the task for good, though it was the node's fault: the task goes back, nothing was started."""
    agent = make_agent(disk_min_free_mib=10**9)
    with StubRegistry(IMAGE.plus({"x": secrets.token_bytes(16)})) as registry:
        task_id = agent.submit("exit", "0", image=f"{registry.address}/{fresh()}:1")
        until("it was handed back", lambda: "disk_full" in str(plane.task(task_id)["attempts"]))
    task = plane.task(task_id)
    assert (task["status"], task["starts"], agent.container(task_id)) == ("pending", 0, None)
    assert "disk_min_free_mib" in task["attempts"][0]["error"]
