"""A control plane in this process: the real application, waitress, database; and agents' and operators' calls."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.protocol import times
from runtime.server.app import assemble
from runtime.server.parts import Parts, build_parts
from runtime.server.services import tokens
from runtime.server.serving import Server
from runtime.server.settings import ServerSettings, with_keys
from tests.integration.waiting import until

KEY = "kZ3-8sLq_0pVw2Rt"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> str | None:
        """The problem's code."""
        code: str | None = self.body.get("code")
        return code


@dataclass
class Plane:
    """One server on loopback. ``call`` speaks HTTP to it over a real socket, one connection a call."""

    parts: Parts
    server: Server
    thread: threading.Thread
    operator_tokens: dict[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return self.server.port

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 30
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = dict(headers or {})
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            # By name in lower case: HTTP does not tell them apart.
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def operator(self, method: str, path: str, body: Any = None, role: str = "admin") -> Answer:
        if role not in self.operator_tokens:
            tokens.revoke(self.parts.db, f"test-{role}")  # an earlier server on the same folder may have made it
            self.operator_tokens[role] = tokens.create(self.parts.db, f"test-{role}", role, times.now(), None)
        return self.call(method, path, body, {"Authorization": f"Bearer {self.operator_tokens[role]}"})

    def events(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.operator("GET", f"/api/v1/events?kind={kind}").body["events"]
        return found


@dataclass
class Agent:
    """What an agent says; ``beat`` sends one and counts on."""

    plane: Plane
    node_id: str = "gpu-a"
    instance_id: str = "11111111-aaaa-bbbb-cccc-000000000001"
    run: int = 1
    seq: int = 0
    boot_id: str = "boot-0001"
    fingerprint: str = "machine-1"

    @property
    def headers(self) -> dict[str, str]:
        return {"X-API-Key": KEY, "X-Node-Id": self.node_id, "X-Instance-Id": self.instance_id}

    def body(self, **members: Any) -> dict[str, Any]:
        self.seq += 1
        return {
            "protocol": 1,
            "node_id": self.node_id,
            "instance_id": self.instance_id,
            "run": self.run,
            "seq": self.seq,
            "boot_id": self.boot_id,
            "fingerprint": self.fingerprint,
            "sent_at": times.to_wire(times.now()),
            **members,
        }

    def beat(self, **members: Any) -> Answer:
        return self.plane.call("POST", "/api/v1/agent/heartbeat", self.body(**members), self.headers)


FULL: dict[str, Any] = {
    "host": {"hostname": "host-a", "cpu_cores": 8, "memory_total_mib": 16000, "mgmt_addr": "10.0.0.1"},
    "docker": {"available": True, "version": "26"},
    "exec_mode": "docker",
    "slots": {"total": 64, "used": 0},
    "gpus": [
        {"uuid": "GPU-a", "vendor": "nvidia", "index": 0, "model": "H100", "memory_total_mib": 81559},
        {"uuid": "GPU-b", "vendor": "nvidia", "index": 1, "model": "H100", "memory_total_mib": 81559},
    ],
    "images": ["registry/one:1"],
    "digests": {"host": "h1", "gpus": "g1", "images": "i1"},
}
UNCHANGED: dict[str, Any] = {
    "docker": FULL["docker"],
    "exec_mode": "docker",
    "slots": {"total": 64, "used": 0},
    "digests": FULL["digests"],
}


OF_A_COPY: dict[str, Any] = {
    **FULL,
    "gpus": [{"uuid": "GPU-x", "vendor": "nvidia", "index": 0, "model": "H100", "memory_total_mib": 81559}],
    "digests": {**FULL["digests"], "gpus": "g2"},
    "gpu_detection": [{"vendor": "nvidia", "found": True, "evidence": "fixture", "loss_detection": "by_absence"}],
}
"""What a clone on another machine says: it has another card."""


@contextlib.contextmanager
def running(state: Path, *, start: bool = True, **settings: Any) -> Iterator[Plane]:
    """A control plane over the folder ``state``."""
    chosen, _ = with_keys(
        ServerSettings(
            **{
                "listen": "127.0.0.1:0",
                "doorbell_listen": "",
                "api_key": KEY,
                "state_dir": str(state),
                "threads": 8,
                **settings,
            }
        )
    )
    parts = build_parts(chosen)
    server = Server(assemble(parts), parts)
    thread = threading.Thread(target=server.run, name="plane")
    thread.start()
    try:
        if start:
            parts.start()
        yield Plane(parts, server, thread)
    finally:
        server.stop()
        thread.join(30)
        parts.stop()
        assert not thread.is_alive(), "the server did not stop"


def wait_until(true: Callable[[], Any], what: str, timeout_s: float = 40) -> Any:
    """What ``true`` returns as soon as that is true."""
    return until(what, true, timeout_s)
