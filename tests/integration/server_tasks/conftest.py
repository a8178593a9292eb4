"""A real control plane in this process, served over loopback, with real nodes' requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.protocol import times
from runtime.server.app import assemble
from runtime.server.auth import token_hash
from runtime.server.parts import Parts, build_parts
from runtime.server.serving import Server
from runtime.server.settings import ServerSettings
from runtime.server.store.tables import tokens
from tests.integration.waiting import until
from tests.lab.simulated_node import SimulatedNode

KEY = "an-api-key-of-the-tests"
Answer = tuple[int, Any]


@dataclass
class Plane:
    """A served control plane: requests of an operator, and nodes that speak to it."""

    parts: Parts
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(
        self, method: str, path: str, body: Any = None, *, token: str = "admin-token", raw: Optional[bytes] = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            content = raw if raw is not None else (None if body is None else json.dumps(body).encode())
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read()
            self.headers = dict(answer.getheaders())
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, body = self.call("GET", path)
        assert status == 200, body
        return body

    def create(self, task_id: str, **spec: Any) -> dict[str, Any]:
        status, body = self.call("POST", "/api/v1/tasks", {"id": task_id, "name": task_id, "image": "app:1", **spec})
        assert status == 201, body
        return dict(body)

    def task(self, task_id: str) -> dict[str, Any]:
        return dict(self.get(f"/api/v1/tasks/{task_id}"))

    def events(self, **query: str) -> list[dict[str, Any]]:
        words = "&".join(f"{name}={value}" for name, value in query.items())
        return list(self.get(f"/api/v1/events?limit=1000&{words}")["events"])

    def node(self, node_id: str = "gpu-a", **facts: Any) -> SimulatedNode:
        """A node that has sent its first beat."""
        node = SimulatedNode(self.url, KEY, node_id, **facts)
        status, body = node.beat()
        assert status == 200, body
        return node

    def scheduled(self, node: SimulatedNode, task_id: str) -> int:
        """The attempt with which the task waits for the node."""
        return int(
            eventually(
                f"{task_id} is scheduled for {node.node_id}",
                lambda: next((task["attempt"] for task in node.scheduled() if task["id"] == task_id), None),
            )
        )

    def running(self, node: SimulatedNode, task_id: str, **spec: Any) -> tuple[int, str]:
        """A created, placed and claimed task: (attempt, claim token)."""
        self.create(task_id, **spec)
        return self.claimed(node, task_id)

    def claimed(self, node: SimulatedNode, task_id: str) -> tuple[int, str]:
        attempt = self.scheduled(node, task_id)
        token, (status, body) = node.claim(task_id, attempt)
        assert status == 200, body
        return attempt, token

    def rows(self, query: Any) -> list[Any]:
        with self.parts.db.read() as connection:
            return list(connection.execute(query).mappings())


def eventually(what: str, probe: Callable[[], Any], deadline_s: float = 40.0) -> Any:
    """What ``probe`` returns once that is something."""
    return until(what, probe, deadline_s)


def start_plane(folder: Path, **settings: Any) -> tuple[Plane, Callable[[], None]]:
    known = {
        "listen": "127.0.0.1:0",
        "doorbell_listen": "",
        "api_key": KEY,
        "state_dir": str(folder),
        "threads": 32,
        **settings,
    }
    folder.mkdir(parents=True, exist_ok=True)
    parts = build_parts(ServerSettings(**known))
    parts.start()
    server = Server(assemble(parts), parts)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    add_tokens(parts)

    def stop() -> None:
        server.stop()
        thread.join(30)
        parts.stop()

    return Plane(parts, server.port), stop


def add_tokens(parts: Parts) -> None:
    moment = times.to_wire(times.now())
    rows = [
        {"name": f"{role}-name", "hash": token_hash(f"{role}-token"), "role": role, "created_at": moment}
        for role in ("admin", "viewer")
    ]
    parts.db.write(lambda tx: tx.execute(tokens.insert(), rows))


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    """On SQLite, the default."""
    made, stop = start_plane(tmp_path / "server")
    yield made
    stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_plane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Plane]:
    """On each database that is supported."""
    with contextlib.ExitStack() as stack:
        url = None
        if request.param == "postgresql":
            url = stack.enter_context(request.getfixturevalue("postgres").database())
        made, stop = start_plane(tmp_path / "server", database_url=url)
        stack.callback(stop)
        yield made
