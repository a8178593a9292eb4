"""Which host runs this agent's processes, and the driver over it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.process.driver import ProcessDriver
from runtime.agent.drivers.process.host import Host
from runtime.agent.drivers.process.records import Folder
from runtime.agent.drivers.process.sandbox import hidden_paths
from runtime.agent.drivers.process.systemd import RUNNING, Systemd
from runtime.agent.drivers.process.unconfined import Unconfined

if TYPE_CHECKING:
    from runtime.agent.hardware.tools import ToolRunner
    from runtime.agent.settings import AgentSettings

OUTPUT = "output"
"""In the state folder: the outputs of processes."""


def process_driver(settings: AgentSettings, runner: ToolRunner, boot: str, own: Sequence[str]) -> ProcessDriver:
    """``boot`` marks this run of the machine; ``own`` are the agent's own places, which no task sees.

    Switched off it still supervises what was started before.
    """
    folder = Folder()
    host: Optional[Host] = None
    if RUNNING.is_dir():
        host = Systemd(folder, runner, hidden_paths(own))
    elif settings.process_unconfined:
        host = Unconfined(folder, runner)
    return ProcessDriver(
        host,
        folder,
        Path(settings.state_dir) / OUTPUT,
        boot,
        enabled=settings.process_driver,
        allow_root=settings.process_allow_root,
    )
