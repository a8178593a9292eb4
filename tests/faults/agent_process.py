"""The real agent on a node, as the machine sees it: its process, and the settings of a fault scenario."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.lab import Node

UNIT = "heterofleet-agent.service"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/faults.conf"
MOUNTS = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")
DEATH_S = 10


class AgentProcess:
    """Found by the unit's control group, without asking anybody on the node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._first = 0
        self._groups: list[Path] = []

    def configure(self, environment: Mapping[str, str], restart_s: float = 0.1) -> None:
        """Settings by environment in a drop-in, and a quick restart by systemd; holds from the next start."""
        lines = "".join(f'Environment="{name}={value}"\n' for name, value in environment.items())
        self.node.put(DROP_IN, f"[Service]\nRestartSec={restart_s}\n{lines}")
        self.node.run(["systemctl", "daemon-reload"])

    @property
    def pid(self) -> int | None:
        """The agent's main process as the machine numbers it; None while there is none."""
        for group in self._unit_groups():
            try:
                pids = [int(word) for word in (group / "cgroup.procs").read_text().split()]
            except OSError:
                continue
            for pid in pids:
                if _parent(pid) == self._first:
                    return pid
        return None

    def kill(self) -> bool:
        """SIGKILL, and gone when this returns; False when there was nothing to kill."""
        pid = self.pid
        if pid is None:
            return False
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            gone, _, _ = select.select([handle], [], [], DEATH_S)
            assert gone, f"the agent {pid} of {self.node.name} lives {DEATH_S} s after SIGKILL"
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def _unit_groups(self) -> list[Path]:
        if not self._first or not Path(f"/proc/{self._first}").exists():
            self._first = self.node.pid
            own = {line.split(":", 2)[2] for line in Path(f"/proc/{self._first}/cgroup").read_text().splitlines()}
            places = {group.removesuffix("/init.scope") for group in own if group.endswith("/init.scope")}
            self._groups = [Path(mount + place, "system.slice", UNIT) for mount in MOUNTS for place in places]
        return self._groups


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return -1
