"""A whole agent in this process, with tasks that are only counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from runtime.agent.app import Agent, Parts
from runtime.agent.hardware.host import HostReader, HostWatch
from runtime.agent.hardware.infiniband.adapters import by_adapter
from runtime.agent.hardware.infiniband.watch import AdapterWatch
from runtime.agent.hardware.inventory import Inventory
from runtime.agent.hardware.tools import ToolRunner
from runtime.agent.link.client import ServerClient
from runtime.agent.link.identity import Machine, take_identity
from runtime.agent.loop import Loop
from runtime.agent.notify import Notifier
from runtime.agent.settings import AgentSettings
from runtime.agent.tasks.orphans import Told
from runtime.protocol.hardware import GpuHolder
from runtime.protocol.heartbeat import DockerState, Foreign, HeartbeatAnswer, Slots, TaskHealth

KEY = "0123456789abcdef"


class CountingExecutor:
    """The tasks' side: remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.answers: list[HeartbeatAnswer] = []
        self.holds = False
        self.stop_blocks = threading.Event()
        self.stop_blocks.set()

    def start(self) -> None:
        self.told.append("start")

    def stop(self, deadline_s: float) -> None:
        self.told.append("stop")
        self.stop_blocks.wait(deadline_s)

    def wake(self) -> None:
        self.told.append("wake")

    def on_answer(self, answer: HeartbeatAnswer) -> None:
        self.answers.append(answer)

    def holds_anything(self) -> bool:
        return self.holds

    def task_health(self) -> list[TaskHealth]:
        return [TaskHealth("t1", "u1", 1, "running")] if self.holds else []

    def live_task_ids(self) -> Optional[list[str]]:
        return []

    def slots(self) -> Slots:
        return Slots(64, 0)

    def process_state(self) -> None:
        return None

    def docker_state(self) -> DockerState:
        return DockerState(True, "20.10")

    def images(self) -> Optional[list[str]]:
        return ["busybox:1"]

    def foreign(self) -> list[Foreign]:
        return []

    def holders(self, processes: list[GpuHolder]) -> list[GpuHolder]:
        return processes

    def orphans(self) -> Told:
        return Told([])

    def disown(self) -> None:
        self.told.append("disown")

    def undelivered(self) -> int:
        return 0

    def loops(self) -> list[Loop]:
        return []


class CountingInstructions:
    def __init__(self) -> None:
        self.loop = Loop("instructions", 60.0, lambda: None)
        self.woken: list[list[str]] = []

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def wake(self, channels: Sequence[str]) -> None:
        self.woken.append(list(channels))


def whole_agent(
    url: str,
    state_dir: Path,
    *,
    executor: Optional[CountingExecutor] = None,
    limits: Optional[dict[str, float]] = None,
    detectors: Sequence[Any] = (),
    environ: Optional[dict[str, str]] = None,
    refused_s: Optional[float] = None,
    runner: Optional[ToolRunner] = None,
    ib_root: Optional[Path] = None,
    **settings: Any,
) -> tuple[Agent, CountingExecutor, CountingInstructions]:
    node_id = settings.pop("node_id", None)
    made = AgentSettings(server_url=url, api_key=KEY, state_dir=str(state_dir), node_id=node_id, **settings)
    identity = take_identity(state_dir, node_id, machine=Machine("节点-é-1", "fingerprint", "boot-1-abcdef"))
    client = ServerClient(made, identity, **(limits or {}))
    runner = runner or ToolRunner(deadline_s=2.0)
    inventory = Inventory(list(detectors), runner, node_id=identity.node_id, state_dir=state_dir)
    reader = HostReader(server=(client.address.host, client.address.port), mgmt_addr=None, paths=[str(state_dir)])
    adapters = AdapterWatch(runner, by_adapter(made.fabrics), root=ib_root or state_dir / "no-adapters")
    tasks, instructions = executor or CountingExecutor(), CountingInstructions()
    agent = Agent(
        Parts(
            made,
            identity,
            client,
            inventory,
            HostWatch(reader),
            tasks,
            instructions,
            notifier=Notifier(environ or {}),
            adapters=adapters,
        )
    )
    if refused_s is not None:
        agent.heartbeats._refused_s = client.key.pause_s = refused_s
    return agent, tasks, instructions
