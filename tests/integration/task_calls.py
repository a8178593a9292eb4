"""What tests ask of a control plane about tasks, whoever runs it."""

from __future__ import annotations

import secrets
from typing import Any

from tests.lab import task_image


class TaskCalls:
    """Mixed into what has a way to call the operator's API."""

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and parsed body of one call; ``path`` begins below ``/api/v1``."""
        raise NotImplementedError

    def submit(self, node_id: str, *command: str, **spec: Any) -> str:
        """A task of the lab's image for this node; its id."""
        task_id = f"t-{secrets.token_hex(5)}"
        body = {"id": task_id, "name": task_id, "image": task_image.NAME, "command": list(command), "node_id": node_id}
        status, answer = self.call("POST", "/tasks", {**body, **spec})
        assert status == 201, answer
        return task_id

    def task(self, task_id: str) -> dict[str, Any]:
        status, body = self.call("GET", f"/tasks/{task_id}")
        assert status == 200, body
        return dict(body)
