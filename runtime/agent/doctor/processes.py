"""Whether plain processes can run here, where they are switched on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Optional

from runtime.agent.doctor.findings import Finding, failure, finding, ok, warning
from runtime.agent.drivers.process.systemd import RUNNING

NAME = "processes"
NEEDED = {
    "systemd-run": "systemd", "systemctl": "systemd", "setpriv": "util-linux", "dd": "coreutils", "stat": "coreutils",
}  # fmt: skip
"""Command -> the package that has it."""
NEEDED_WITHOUT_SYSTEMD = {**{name: NEEDED[name] for name in ("setpriv", "dd", "stat")}, "setsid": "util-linux"}


@dataclass(frozen=True)
class ProcessFacts:
    """``missing`` are commands that are wanted and not there."""

    systemd: bool
    unconfined: bool
    allow_root: bool
    missing: tuple[str, ...] = ()


def look_at_processes(unconfined: bool, allow_root: bool, path: Optional[str] = None) -> ProcessFacts:
    systemd = RUNNING.is_dir()
    wanted = NEEDED if systemd else NEEDED_WITHOUT_SYSTEMD
    missing = tuple(name for name in wanted if shutil.which(name, path=path) is None)
    return ProcessFacts(systemd, unconfined, allow_root, missing)


def judge_processes(facts: ProcessFacts) -> Finding:
    points = []
    if facts.systemd:
        points.append(ok("plain processes run as transient units"))
    elif facts.unconfined:
        points.append(
            warning(
                "plain processes run without systemd, and nothing keeps them from what their user may read",
                "systemd",
                "give this node tasks of people whom you trust with it, or set process_unconfined: false",
            )
        )
    else:
        points.append(
            failure(
                "process_driver is on and there is no systemd here",
                "systemd, or process_unconfined: true",
                "set process_driver: false, or process_unconfined: true where you trust whoever submits tasks",
            )
        )
    if facts.allow_root:
        advice = "set process_allow_root: false unless you trust whoever submits tasks with this machine"
        points.append(warning("a task may run a process as root", "process_allow_root: false", advice))
    for name in facts.missing:
        points.append(failure(f"{name} is not here", name, f"install {NEEDED.get(name, 'util-linux')}"))
    return finding(NAME, points)
