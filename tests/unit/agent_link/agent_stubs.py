"""A heartbeat with nothing real around it, for tests of its decisions."""

from __future__ import annotations

from typing import Any

from runtime.agent.link.beat import Content
from runtime.agent.link.heartbeat import Heartbeats


class StubIdentity:
    """An identity that keeps its changes to itself."""

    def __init__(self, *, defaulted: bool = False) -> None:
        self.node_id, self.instance_id, self.run = "gpu-a", "instance-1", 3
        self.fingerprint, self.boot_id = "f" * 64, "boot-1-abcdef"
        self.defaulted = defaulted
        self.instances = 1

    def take_run(self, run: int) -> None:
        self.run = run

    def new_instance(self) -> None:
        self.instances += 1
        self.instance_id, self.run = f"instance-{self.instances}", 1

    def take_spare_node_id(self) -> str:
        self.node_id = "gpu-a-123456"
        return self.node_id


def heartbeats(
    client: Any, identity: Any = None, holds: bool = False, members: Any = None, **options: Any
) -> Heartbeats:
    options.setdefault("on_answer", lambda answer: None)
    options.setdefault("on_pending", lambda counts: None)
    options.setdefault("on_status", lambda: None)
    return Heartbeats(
        client,
        identity or StubIdentity(),
        lambda: Content(dict(members or {})),
        holds_anything=lambda: holds,
        **options,
    )
