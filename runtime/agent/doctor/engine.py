"""The Docker engine that runs the tasks, and the runtime that hands them cards."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from runtime.agent.doctor.cards import CardFacts
from runtime.agent.doctor.configuration import AS_ROOT
from runtime.agent.doctor.findings import Finding, failure, finding, ok, unknown, warning
from runtime.agent.drivers.engine import DockerEngine
from runtime.agent.drivers.errors import DriverError
from runtime.agent.hardware.tools import find_command
from runtime.agent.hardware.visibility import NVIDIA_RUNTIME
from runtime.protocol.causes import root_cause

ANSWER_S = 8
DEFAULT_SOCKET = "/var/run/docker.sock"
HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
"""What Docker's own ``--gpus`` looks for where no runtime of that name is registered."""

RELOAD_HINT = (
    "systemd keeps the device rules of containers here (cgroup driver systemd): `systemctl daemon-reload`, which "
    "package upgrades do, too, can take the cards from running ones; "
    "nvidia-ctk system create-dev-char-symlinks --create-all, or "
    '{"exec-opts": ["native.cgroupdriver=cgroupfs"]} in daemon.json, keeps them'
)

SLOW_STORAGE = {"vfs": "every container copies its whole image", "devicemapper": "newer engines do not know it",
                "aufs": "newer engines do not know it"}  # fmt: skip


@dataclass(frozen=True)
class EngineLook:
    """``socket``: "" it is there, else what is wrong with it; ``error``: the engine did not answer, and why.
    ``denied``: this user may not ask. ``info`` is the engine's own ``/info``, ``version`` its ``/version``."""

    host: str
    socket: str = ""
    denied: bool = False
    error: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    version: dict[str, Any] = field(default_factory=dict)
    hook: bool = False

    @property
    def answers(self) -> bool:
        return not (self.socket or self.error or self.denied)

    @property
    def root_dir(self) -> Optional[str]:
        return self.info.get("DockerRootDir") or None


def look_at_engine(host: Optional[str], say: Callable[[str], None] = lambda _: None) -> EngineLook:
    """Ask the engine behind ``host`` (None: Docker's own default) who it is; nothing takes longer than it may."""
    shown = host or f"unix://{DEFAULT_SOCKET}"
    if shown.startswith("unix://"):
        path = shown[len("unix://") :]
        try:
            mode = Path(path).stat().st_mode
        except PermissionError:
            return EngineLook(shown, denied=True)
        except OSError as error:
            return EngineLook(shown, socket=root_cause(error))
        if not stat.S_ISSOCK(mode):
            return EngineLook(shown, socket="is not a socket")
        if not os.access(path, os.R_OK | os.W_OK):
            return EngineLook(shown, denied=True)
    say(f"asking the engine at {shown}")
    engine = DockerEngine(host, call_s=ANSWER_S)
    try:
        version = engine.call("GET", "/version", timeout_s=ANSWER_S)
        info = engine.call("GET", "/info", timeout_s=ANSWER_S)
    except DriverError as error:
        return EngineLook(shown, error=str(error))
    finally:
        say("")
    hook = any(find_command(name) for name in HOOKS)
    return EngineLook(shown, info=_members(info), version=_members(version), hook=hook)


def _members(answer: Any) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {}


def judge_engine(facts: EngineLook, guessed: bool = False) -> Finding:
    """An engine that is too old or too new for the client says so itself. ``guessed``: no settings could be read, so
    the engine that was asked is Docker's default and may not be the agent's."""
    if facts.denied:
        return finding("engine", [unknown(f"this user may not ask the engine at {facts.host}", AS_ROOT)])
    if facts.socket:
        words = f"no engine at {facts.host}: {facts.socket}"
        advice = "install Docker Engine (the all-in-one script does it with --with-docker), or: systemctl start docker"
        return finding("engine", [failure(words, "Docker Engine's socket", advice)])
    if facts.error:
        advice = "journalctl -u docker says why; restarting Docker ends running tasks unless live-restore is on"
        if "refused" in facts.error:
            advice = "nobody listens there: systemctl start docker"
        elif "client version" in facts.error or "API version" in facts.error:
            advice = "the engine and this agent share no API version: upgrade the older of the two"
        return finding("engine", [failure(f"{facts.host}: {facts.error}", "an engine that answers", advice)])
    info = facts.info
    points = []
    storage = info.get("Driver")
    if storage in SLOW_STORAGE:
        words = f"storage driver {storage}: {SLOW_STORAGE[storage]}"
        points.append(warning(words, "overlay2", "move the engine to overlay2"))
    if info.get("MemoryLimit") is False:
        words = "this kernel does not enforce memory limits of containers"
        points.append(warning(words, "the memory controller of cgroups", "boot with cgroup_enable=memory"))
    if any("rootless" in str(option) for option in info.get("SecurityOptions") or []):
        words = "the engine runs rootless: cards, host networks and folders of other users are out of its reach"
        points.append(warning(words, "Docker Engine as root", "use the system's engine"))
    hint = ""
    if info.get("LiveRestoreEnabled") is False:
        hint = (
            "live-restore is off: restarting or upgrading Docker ends the running tasks; "
            '{"live-restore": true} in /etc/docker/daemon.json lets them go on'
        )
    told = [
        f"Docker {facts.version.get('Version') or info.get('ServerVersion') or 'of unknown version'} answers",
        f"API {facts.version.get('ApiVersion') or 'unknown'}",
        f"storage {storage or 'unknown'}",
        f"cgroup v{info.get('CgroupVersion') or '?'} by {info.get('CgroupDriver') or 'unknown'}",
        f"live-restore {_switch(info.get('LiveRestoreEnabled'))}",
    ]
    if guessed:
        told.append(f"asked at {facts.host}, as no settings could be read")
    return finding("engine", [*points, ok(", ".join(told), hint)])


def _switch(value: Optional[bool]) -> str:
    return "unknown" if value is None else "on" if value else "off"


def judge_runtime(facts: EngineLook, cards: CardFacts) -> Finding:
    """Whether a task can be handed the node's cards."""
    if not facts.answers:
        return finding("runtime", [unknown("which runtimes there are is not known: no engine answers", "see engine")])
    runtimes = sorted(facts.info.get("Runtimes") or {})
    listed = f"runtimes: {', '.join(runtimes) or 'none'}"
    if NVIDIA_RUNTIME in runtimes:
        reloads = cards.nvidia_present and facts.info.get("CgroupDriver") == "systemd"
        return finding("runtime", [ok(listed, RELOAD_HINT if reloads else "")])
    if not cards.nvidia_present:
        reason = "no NVIDIA card needs one" if cards.known else "whether a card needs one is not known"
        return finding("runtime", [ok(f"{listed}; {reason}") if cards.known else unknown(f"{listed}; {reason}")])
    advice = (
        "install the NVIDIA Container Toolkit, then: nvidia-ctk runtime configure --runtime=docker, and restart "
        "Docker when no task runs"
    )
    wanted = "the runtime nvidia, as there are NVIDIA cards"
    if facts.hook:
        return finding("runtime", [warning(f"{listed}; cards are handed out by Docker's own hook", wanted, advice)])
    return finding("runtime", [failure(f"{listed}: tasks cannot be given the cards", wanted, advice)])
