"""The proxy between an agent and the control plane, on a port of the machine."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

from tests.faults.relay import Call, Relay

_TASK = re.compile(r"/api/v1/tasks/[^/?]+")


def kind_of(call: Call) -> str:
    """``heartbeat``, ``claim``, ``report``, ``sleep_report``, ``task``, ``offer``, ``logs``, ``reclaim``,
    ``checkpoint``, ``pending``, ``preflight``, ``doorbell``, ``instruction``, or ``other``."""
    path = call.path.partition("?")[0]
    if _TASK.fullmatch(path):
        return _change(body_of(call)) if call.method == "PUT" else "task"
    tail = path.rpartition("/")[2]
    if _TASK.match(path):
        return {"checkpoint-resume": "checkpoint"}.get(tail, tail)
    if path == "/api/v1/tasks":
        return "offer"
    if "-requests" in path:
        return "instruction"
    return tail if tail in ("heartbeat", "pending", "preflight", "doorbell") else "other"


def _change(body: Any) -> str:
    if body.get("from_status") == "scheduled":
        return "claim"
    return "sleep_report" if "sleeping" in (body.get("status"), body.get("from_status")) else "report"


def body_of(call: Call) -> Any:
    """A call's JSON; an empty object when it has none."""
    try:
        return json.loads(call.body) if call.body else {}
    except ValueError:
        return {}


class ServerProxy(Relay):
    """Listens on ``host:port`` (0: any free one) and passes on to the control plane's address, which may come later."""

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1", port: int = 0) -> None:
        self.host, self.port, self._target = host, port, target
        super().__init__(
            self._listening, self._connected, kind_of=kind_of, is_stream=lambda call: call.kind == "doorbell"
        )

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def _listening(self) -> socket.socket:
        listener = socket.create_server((self.host, self.port), backlog=128)
        self.port = int(listener.getsockname()[1])
        return listener

    def _connected(self) -> socket.socket:
        return socket.create_connection(self._target, timeout=60)
