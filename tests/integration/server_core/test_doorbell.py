"""The doorbell over a real connection."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.server import doorbell as doorbells
from runtime.server.doorbell import Doorbell
from tests.integration.server_core.plane import FULL, UNCHANGED, Agent, Plane, running, wait_until

PATH = "/api/v1/agent/doorbell?node_id=gpu-a"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with running(tmp_path, doorbell_listen="127.0.0.1:0") as made:
        yield made


@pytest.fixture
def bell(plane: Plane) -> Iterator[Doorbell]:
    made = Doorbell(plane.parts)
    made.start()
    yield made
    made.stop()


def ask(bell: Doorbell, headers: dict[str, str], path: str = PATH, method: str = "GET") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", bell.port, timeout=30)

    def connect() -> bool:
        try:
            connection.connect()
        except OSError:
            return False
        return True

    wait_until(connect, "the doorbell listens")
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_it_rings_when_a_task_comes(plane: Plane, agent: Agent, bell: Doorbell) -> None:
    agent.beat(**FULL)
    stream = ask(bell, agent.headers)
    assert stream.status == 200
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    assert stream.headers["X-Control-Plane-Id"] == plane.parts.db.control_plane_id
    assert stream.readline() == b": hello\n"
    assert stream.readline() == b"\n"
    plane.operator("POST", "/api/v1/tasks", {"name": "t", "image": "registry/one:1"})
    assert stream.readline() == b"event: wake\n"
    data = stream.readline()
    assert json.loads(data.removeprefix(b"data: ")) == {"channels": ["tasks"]}
    # What it rang for is in the answer to the next beat already.
    assert agent.beat(**UNCHANGED).body["pending"]["tasks"] == 1
    stream.close()


def test_it_says_now_and_then_that_it_is_there(
    plane: Plane, agent: Agent, bell: Doorbell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbells, "COMMENT_EVERY_S", 0.05)
    agent.beat(**FULL)
    stream = ask(bell, agent.headers)
    lines = [stream.readline() for _ in range(6)]
    assert lines == [b": hello\n", b"\n", b": still here\n", b"\n", b": still here\n", b"\n"]


@pytest.mark.parametrize(
    ("changed", "path", "method", "status", "code"),
    [
        ({"X-API-Key": "wrong"}, PATH, "GET", 401, "bad_api_key"),
        ({"X-Instance-Id": "other-instance"}, PATH, "GET", 403, "instance_mismatch"),
        ({"X-Node-Id": "gpu-b"}, PATH, "GET", 403, "node_scope_mismatch"),
        ({"X-Node-Id": "gpu-b"}, "/api/v1/agent/doorbell", "GET", 403, "instance_mismatch"),
        ({}, "/", "GET", 404, "route_not_found"),
        ({}, PATH, "POST", 405, "method_not_allowed"),
    ],
)
def test_refused(
    plane: Plane, agent: Agent, bell: Doorbell, changed: dict[str, str], path: str, method: str, status: int, code: str
) -> None:
    agent.beat(**FULL)
    answer = ask(bell, {**agent.headers, **changed}, path, method)
    body = json.loads(answer.read())
    assert (answer.status, body["code"]) == (status, code)
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_stop_ends_the_streams(plane: Plane, agent: Agent) -> None:
    bell = Doorbell(plane.parts)
    bell.start()
    agent.beat(**FULL)
    stream = ask(bell, agent.headers)
    stream.readline()
    bell.stop()
    rest = stream.read()
    assert b"event" not in rest
    assert not bell._thread.is_alive()


@pytest.mark.parametrize(
    ("listen", "public_url", "host", "expected"),
    [
        ("0.0.0.0:3334", None, "plane.example:3333", "http://plane.example:3334/api/v1/agent/doorbell"),
        ("0.0.0.0:3334", None, "[fd00::1]:3333", "http://[fd00::1]:3334/api/v1/agent/doorbell"),
        ("0.0.0.0:3334", "https://gpu.example", "ignored", "https://gpu.example:3334/api/v1/agent/doorbell"),
        ("", None, "plane.example", None),
        ("0.0.0.0:3334", None, 'evil"host', None),
        ("0.0.0.0:3334", None, "", None),
    ],
)
def test_its_address_is_as_the_agent_sees_us(
    listen: str, public_url: str | None, host: str, expected: str | None
) -> None:
    from runtime.server.services.addresses import doorbell_url
    from runtime.server.settings import ServerSettings

    assert doorbell_url(ServerSettings(doorbell_listen=listen, public_url=public_url), host) == expected


def test_a_proxy_may_hand_it_out_elsewhere() -> None:
    from runtime.server.services.addresses import doorbell_url
    from runtime.server.settings import ServerSettings

    said = {"public_url": "https://gpu.example", "doorbell_url": "https://gpu.example"}
    found = doorbell_url(ServerSettings(doorbell_listen="127.0.0.1:13334", **said), "ignored")
    assert found == "https://gpu.example/api/v1/agent/doorbell"
    assert doorbell_url(ServerSettings(doorbell_listen="", **said), "ignored") is None
