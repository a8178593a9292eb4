"""A node that only speaks: the agent's side of the protocol over real HTTP, without machine or engine behind it.

For tests of the server that need many nodes, or an agent that misbehaves on purpose.
"""

from __future__ import annotations

import http.client
import json
import uuid
from typing import Any, Optional
from urllib.parse import quote, urlsplit

Answer = tuple[int, Any]


class SimulatedNode:
    """One agent identity. ``beat()`` registers it; calls return (status, parsed body) and never raise on 4xx."""

    def __init__(self, url: str, key: str, node_id: str, *, cards: int = 0, slots: int = 64) -> None:
        self.address = urlsplit(url).netloc
        self.key = key
        self.node_id = node_id
        self.instance_id = str(uuid.uuid4())
        self.boot_id = str(uuid.uuid4())
        self.run = 1
        self.seq = 0
        self.cards = cards
        self.slots = slots
        self.health: list[dict[str, Any]] = []

    def call(
        self, method: str, path: str, body: Any = None, headers: Optional[dict[str, str]] = None, timeout: float = 30
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(self.address, timeout=timeout)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {
                    "Content-Type": "application/json",
                    "X-API-Key": self.key,
                    "X-Node-Id": self.node_id,
                    "X-Instance-Id": self.instance_id,
                    **(headers or {}),
                },
            )
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()

    def beat(self, **sections: Any) -> Answer:
        """A heartbeat with everything a placement needs; ``sections`` replace or add members."""
        self.seq += 1
        body = {
            "protocol": 1,
            "node_id": self.node_id,
            "instance_id": self.instance_id,
            "fingerprint": f"fp-{self.node_id}",
            "boot_id": self.boot_id,
            "run": self.run,
            "seq": self.seq,
            "agent": {"version": "0.1.0", "commit": "test"},
            "host": {"hostname": self.node_id, "cpu_cores": 64, "memory_total_mib": 1 << 20},
            "docker": {"available": True, "version": "26.0.0", "runtimes": ["runc"]},
            "exec_mode": "docker",
            "slots": {"total": self.slots, "used": len(self.health)},
            "gpus": [
                {
                    "uuid": f"GPU-{self.node_id}-{index}",
                    "vendor": "nvidia",
                    "index": index,
                    "model": "NVIDIA L4",
                    "class": "nvidia-l4-24g",
                    "memory_total_mib": 23034,
                }
                for index in range(self.cards)
            ],
            "live_task_ids": [entry["task_id"] for entry in self.health],
            "task_health": self.health,
            **sections,
        }
        return self.call("POST", "/api/v1/agent/heartbeat", body)

    def scheduled(self) -> list[dict[str, Any]]:
        """The tasks that wait for this node's claim."""
        status, body = self.call("GET", f"/api/v1/tasks?node_id={self.node_id}&status=scheduled&limit=20")
        assert status == 200, body
        return list(body["tasks"])

    def task(self, task_id: str) -> Answer:
        return self.call("GET", f"/api/v1/tasks/{quote(task_id)}")

    def put(self, task_id: str, attempt: int, token: str, source: str, target: str, **more: Any) -> Answer:
        """Compare-and-set of a task's status."""
        body = {
            "node_id": self.node_id,
            "attempt": attempt,
            "claim_token": token,
            "from_status": source,
            "status": target,
            **more,
        }
        return self.call("PUT", f"/api/v1/tasks/{quote(task_id)}", body)

    def claim(self, task_id: str, attempt: int, token: Optional[str] = None) -> tuple[str, Answer]:
        """(token, answer) of a claim."""
        token = token or uuid.uuid4().hex
        return token, self.put(task_id, attempt, token, "scheduled", "running")
