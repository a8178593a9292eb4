"""The tasks' side of the agent, built from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from runtime.agent.drivers.docker import DockerDriver
from runtime.agent.instructions.runner import InstructionRunner
from runtime.agent.tasks.executor import Executor

if TYPE_CHECKING:
    from runtime.agent.hardware.inventory import GpuSnapshot
    from runtime.agent.link.client import ServerClient
    from runtime.agent.link.identity import Identity
    from runtime.agent.settings import AgentSettings
    from runtime.agent.tasks.journal import Journal


def build_workload(
    settings: AgentSettings,
    client: ServerClient,
    journal: Journal,
    identity: Identity,
    snapshot: Callable[[], GpuSnapshot],
) -> tuple[Executor, InstructionRunner]:
    """Executor and instruction runner over one engine; nothing is contacted yet."""
    driver = DockerDriver(settings.docker_host)
    executor = Executor(settings, client, driver, journal, identity, snapshot)
    return executor, InstructionRunner(client, driver, journal, identity)
