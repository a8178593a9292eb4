"""A control plane in a process of its own on loopback, and calls to it that keep every byte of the answer."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlsplit

from tests.lab.control_plane import ControlPlane
from tests.lab.simulated_node import SimulatedNode

BIN = Path(sys.executable).parent
SERVER = str(BIN / "heterofleet")
AGENT = str(BIN / "heterofleet-agent")
GOOD_KEY = "q7Tz-contract-4_Lw0"


@dataclass(frozen=True)
class Answer:
    """Header names in lower case: HTTP does not tell them apart."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> Optional[str]:
        """The problem's code; None when this is no problem document."""
        return self.body.get("code") if "problem+json" in self.headers.get("content-type", "") else None


def call(
    url: str,
    method: str,
    path: str,
    body: Any = None,
    headers: Optional[Mapping[str, str]] = None,
    timeout: float = 30,
) -> Answer:
    """One request; ``body`` is sent as it is when it is bytes, else as JSON."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {**({} if data is None else {"Content-Type": "application/json"}), **(headers or {})}
    try:
        connection.request(method, path, data, sent)
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def control_plane(name: str, *, doorbell: str = "", start: bool = True, **settings: Any) -> Iterator[ControlPlane]:
    """A fresh one, ready, removed at the end."""
    plane = ControlPlane(f"{name}-{os.getpid()}", listen=f"127.0.0.1:{free_port()}", doorbell=doorbell, **settings)
    plane.remove()
    try:
        if start:
            plane.start()
        yield plane
    finally:
        plane.remove()


class Live:
    """A running control plane with its callers: an admin, a viewer, agents."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.url = plane.url
        self._tokens: dict[str, str] = {"admin": plane.token_file.read_text().strip()}

    def token(self, role: str = "admin") -> str:
        if role not in self._tokens:
            path = self.plane.folder / f"{role}-token"
            self.plane.make_token(f"the-{role}", role, path)
            self._tokens[role] = path.read_text().strip()
        return self._tokens[role]

    def secrets(self) -> list[str]:
        return [self.plane.key, *self._tokens.values()]

    def operator(self, method: str, path: str, body: Any = None, *, role: str = "admin", **headers: str) -> Answer:
        return call(self.url, method, path, body, {"Authorization": f"Bearer {self.token(role)}", **headers})

    def agent(self, node: SimulatedNode, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """As this node; ``headers`` (``X_Node_Id="other"``) replace its own, an empty one is left out."""
        sent = {"X-API-Key": node.key, "X-Node-Id": node.node_id, "X-Instance-Id": node.instance_id}
        sent.update({name.replace("_", "-"): value for name, value in headers.items()})
        return call(self.url, method, path, body, {name: value for name, value in sent.items() if value})

    def node(self, node_id: str, *, cards: int = 0) -> SimulatedNode:
        """A node that has sent its first beat."""
        node = SimulatedNode(self.url, self.plane.key, node_id, cards=cards)
        status, body = node.beat()
        assert status == 200, body
        return node

    def create(self, task_id: str, **body: Any) -> dict[str, Any]:
        answer = self.operator("POST", "/api/v1/tasks", {"id": task_id, "name": task_id, "image": "app:1", **body})
        assert answer.status == 201, answer.raw
        return dict(answer.body)


def clean_environment(**variables: str) -> dict[str, str]:
    """This process's environment without any setting of ours, and ``variables``."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("HETEROFLEET_")}, **variables}


def run(
    *words: str,
    env: Optional[Mapping[str, str]] = None,
    timeout: float = 60,
    cwd: Optional[Path] = None,
) -> subprocess.CompletedProcess[str]:
    """A command to its end, with no setting of ours from this process's environment."""
    return subprocess.run(
        words,
        env=clean_environment(**(env or {})),
        cwd=cwd or Path("/"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
