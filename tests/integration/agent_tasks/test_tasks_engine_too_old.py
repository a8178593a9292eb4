"""A whole agent whose Docker refuses the version of its API that the agent speaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.app import Agent
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.journal import open_journal
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.agent.wiring import build
from runtime.protocol.masking import Masker
from runtime.protocol.tasks import TaskSpec
from tests.integration.agent_link.stub_server import CONTROL_PLANE, Reply, StubServer, beat_answer, stub_server
from tests.integration.agent_tasks.test_tasks_engine_stub import VERSION, Stub
from tests.integration.waiting import until

TEXT = "client version 1.41 is too old. Minimum supported API version is 1.44"
HEARTBEAT, TASKS = "/api/v1/agent/heartbeat", "/api/v1/tasks"
OFFERED = {
    "id": "new",
    "uid": "u-new",
    "name": "new",
    "kind": "job",
    "driver": "docker",
    "status": "scheduled",
    "desired": "run",
    "node_id": "node-a",
    "attempt": 1,
    "spec": {"name": "new", "image": "busybox:1"},
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Stub]:
    stub = Stub(tmp_path / "engine.sock")
    for method in ("GET", "POST", "DELETE"):
        stub.on(method, "", 400, {"message": TEXT})
    stub.on("GET", "/version", 200, VERSION)
    yield stub
    stub.close()


@pytest.fixture
def server() -> Iterator[StubServer]:
    with stub_server() as server:
        server.answers[HEARTBEAT] = beat_answer(
            interval_s=1, pending={"tasks": 1, "slices": 0, "images": 0, "files": 0}
        )
        server.answers[TASKS] = Reply(200, {"tasks": [OFFERED]})
        yield server


def running(server: StubServer, folder: Path, **settings: Any) -> tuple[Agent, Any]:
    known = {"server_url": server.url, "api_key": "0123456789abcdef", "node_id": "node-a", "poll_interval_s": 1.0}
    return build(
        AgentSettings(state_dir=str(folder / "agent"), docker_host=f"unix://{folder}/engine.sock", **known, **settings),
        Masker(),
    )


@pytest.mark.case("FC-019")
@pytest.mark.parametrize("held", [False, True], ids=["new-folder", "task-runs"])
def test_it_says_why_and_takes_and_touches_nothing(
    server: StubServer, engine: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """What happened: Docker 29 dropped old versions of its API, and agents died of it, some only because a variable
    pinned theirs. One that lived said that nothing ran on its node, although nobody could look."""
    monkeypatch.setenv("DOCKER_API_VERSION", "1.24")
    if held:
        (tmp_path / "agent").mkdir()
        journal = open_journal(tmp_path / "agent")
        spec = TaskSpec(name="old", image="busybox:1")
        journal.save(ClaimRecord(Key("u-old", 1), "old", CONTROL_PLANE, "t" * 32, Stage.RUNNING, spec,
                                 container_id="c" * 64))  # fmt: skip
        journal.close()
    agent, lock = running(server, tmp_path)
    agent.start()
    try:

        def told() -> list[dict[str, Any]]:
            bodies = [request.body for request in server.of(HEARTBEAT)]
            return [body for body in bodies if TEXT in ((body.get("docker") or {}).get("error") or "")]

        until("beats that say why Docker is away", lambda: len(told()) >= 3 and server.of(TASKS))
        for body in told():
            assert body["docker"]["available"] is False and body["exec_mode"] == "baremetal"
            assert body["drivers"] == []
            assert {"live_task_ids", "foreign", "orphans", "images", "engines"}.isdisjoint(body)
            assert [one["task_id"] for one in body["task_health"]] == (["old"] if held else [])
    finally:
        agent.stop()
        lock.release()
    assert [request.method for request in server.requests if request.method == "PUT"] == []
    assert {method for method, _, _ in engine.asked} == {"GET"}, "no container was touched"
    assert not any("/v1.24/" in path for _, path, _ in engine.asked)
