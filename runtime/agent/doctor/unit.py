"""The systemd unit: installed, enabled, running, which copy of the agent, and what the kernel holds it to."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from runtime.agent.doctor.disk import OPT
from runtime.agent.doctor.findings import Finding, Point, failure, finding, ok, unknown, warning
from runtime.agent.hardware.tools import ToolError, ToolRunner, find_command
from runtime.agent.status import FILE as STATUS_FILE
from runtime.agent.status import read_status

UNIT = "heterofleet-agent.service"
COMMAND = "heterofleet-agent"
SYSTEMD_S = 6.0
SYSTEMD = Path("/run/systemd/system")
PROPERTIES = ("LoadState", "UnitFileState", "ActiveState", "SubState", "Result", "MainPID", "NRestarts",
              "NeedDaemonReload", "DropInPaths", "SystemCallFilter",
              "InactiveExitTimestampMonotonic")  # fmt: skip
INSTALL = "run install-agent.sh"
SECCOMP_FILTER = 2
STARTING_S = 30.0
"""A first start that is younger is on its way and no fault; an agent unpacks itself and looks for cards meanwhile."""


@dataclass(frozen=True)
class UnitFacts:
    """``systemd``: this machine was started by it. ``properties`` as ``systemctl show`` prints them; ``error`` when it
    did not. ``current``: the release that the link names. ``running``: the version that the running agent says,
    ``seccomp`` its mode in the kernel. ``others``: further copies of the command that PATH would find first."""

    systemd: bool
    properties: dict[str, str] = field(default_factory=dict)
    error: str = ""
    current: Optional[str] = None
    running: Optional[str] = None
    seccomp: Optional[int] = None
    others: tuple[str, ...] = ()
    registered: Optional[bool] = None
    last_error: Optional[dict[str, Any]] = None
    since_s: Optional[float] = None
    """How long ago systemd began to start the service, in seconds; None when it did not tell."""

    @property
    def guarded(self) -> Optional[bool]:
        """Whether the kernel keeps the running agent from opening a port; None when nothing is known of it."""
        if self.seccomp is None:
            return None
        named = self.properties.get("SystemCallFilter", "")
        return self.seccomp == SECCOMP_FILTER and named.startswith("~") and "listen" in named[1:].split()


def look_at_unit(state_dir: Path) -> UnitFacts:
    current = _current()
    others = _other_copies(os.environ.get("PATH", "")) if current is not None else ()
    systemctl = find_command("systemctl")
    if not SYSTEMD.is_dir() or systemctl is None:
        return UnitFacts(False, current=current, others=others)
    question = [systemctl, "show", "--no-pager", f"--property={','.join(PROPERTIES)}", UNIT]
    try:
        output = ToolRunner(SYSTEMD_S).run("systemctl", question)
    except ToolError as error:
        return UnitFacts(True, error=str(error), current=current, others=others)
    if output.status != 0:
        words = (output.stderr or output.stdout).strip().splitlines()
        return UnitFacts(True, error=words[0] if words else f"status {output.status}", current=current, others=others)
    properties = dict(line.split("=", 1) for line in output.stdout.splitlines() if "=" in line)
    pid = int(properties.get("MainPID") or 0)
    status = read_status(state_dir / STATUS_FILE)
    ours = status is not None and pid != 0 and status.get("pid") == pid
    return UnitFacts(
        True,
        properties,
        current=current,
        running=str(status["version"]) if ours and status and status.get("version") else None,
        seccomp=_seccomp(pid),
        others=others,
        registered=bool(status.get("registered")) if ours and status else None,
        last_error=status.get("last_error") if ours and status else None,
        since_s=_since(properties.get("InactiveExitTimestampMonotonic", "")),
    )


def _since(microseconds: str) -> Optional[float]:
    return time.monotonic() - int(microseconds) / 1e6 if microseconds.isdigit() and int(microseconds) else None


def _current() -> Optional[str]:
    try:
        return Path(OPT, "current").readlink().name
    except OSError:
        return None


def _seccomp(pid: int) -> Optional[int]:
    try:
        for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
            if line.startswith("Seccomp:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _other_copies(path: str) -> tuple[str, ...]:
    """Copies on PATH that are not the installed one, in the order in which a shell would find them."""
    installed = os.path.realpath(f"{OPT}/current/{COMMAND}")
    found = []
    for folder in path.split(":"):
        copy = f"{folder}/{COMMAND}"
        if folder.startswith("/") and os.access(copy, os.X_OK) and os.path.realpath(copy) != installed:
            found.append(copy)
    return tuple(dict.fromkeys(found))


def release_of(version: str) -> str:
    """How the folder of the release begins whose agent says ``version`` of itself."""
    return version.replace("/", "-", 1) + "-"


def judge_unit(facts: UnitFacts) -> Finding:
    points = _judge_state(facts)
    for copy in facts.others:
        points.append(
            warning(f"{copy} is another copy of the agent", f"only the one below {OPT}", f"remove {copy}; the "
                    f"service runs {OPT}/current/{COMMAND}")
        )  # fmt: skip
    return finding("unit", points)


def _judge_state(facts: UnitFacts) -> list[Point]:
    if not facts.systemd:
        return [unknown("this machine was not started by systemd: nothing is known of a service")]
    if facts.error:
        return [unknown(f"systemd did not tell: {facts.error}", "systemctl status " + UNIT)]
    known = facts.properties
    if known.get("LoadState") == "not-found":
        return [warning(f"{UNIT} is not installed", "an installed agent", INSTALL)]
    if known.get("LoadState") != "loaded":
        words = f"{UNIT} is {known.get('LoadState') or 'in an unknown state'}"
        return [failure(words, "a unit that systemd can load", f"systemd-analyze verify {UNIT}; {INSTALL}")]
    points: list[Point] = []
    if known.get("UnitFileState") != "enabled":
        words = f"{UNIT} is {known.get('UnitFileState') or 'not enabled'}: it does not start with the machine"
        points.append(warning(words, "enabled", f"systemctl enable {UNIT}"))
    active, sub = known.get("ActiveState", ""), known.get("SubState", "")
    restarts = known.get("NRestarts", "0")
    if active == "active":
        points += _judge_running(facts)
    elif (active, sub, restarts) == ("activating", "start", "0") and (facts.since_s or STARTING_S) < STARTING_S:
        points.append(ok(f"{UNIT} is starting, for {facts.since_s:.0f} s now"))
    elif active in ("failed", "activating", "deactivating") and sub != "start":
        words = f"{UNIT} is {active} ({sub}, {known.get('Result')}, started again {restarts} times)"
        points.append(failure(words, "active", f"journalctl -u {UNIT} -n 30 says why"))
    else:
        points.append(warning(f"{UNIT} is {active} ({sub})", "active", f"systemctl start {UNIT}"))
    if known.get("NeedDaemonReload") == "yes":
        points.append(warning("systemd holds an older text of the unit", "the present one", "systemctl daemon-reload "
                              "(on a node with cards: when no task runs)"))  # fmt: skip
    if known.get("DropInPaths"):
        points.append(ok(f"changed by {known['DropInPaths']}"))
    return points


def _judge_running(facts: UnitFacts) -> list[Point]:
    points: list[Point] = []
    running = facts.running or "an agent whose version is not known"
    if facts.guarded is False:
        words = "the kernel does not keep this agent from opening a port (the unit's filter is not in force)"
        points.append(warning(words, "the unit's SystemCallFilter in force", f"{INSTALL} again; see journalctl -u "
                              f"{UNIT}"))  # fmt: skip
    if facts.running and facts.current and not facts.current.startswith(release_of(facts.running)):
        words = f"runs {facts.running}, and {OPT}/current is {facts.current}"
        points.append(warning(words, "the installed release running", f"systemctl restart {UNIT}"))
    if facts.registered is False and facts.last_error:
        words = f"not registered: {facts.last_error.get('code')}: {facts.last_error.get('text')}"
        points.append(warning(words, "a registered agent", "heterofleet-agent status; see server and key"))
    guard = ", the kernel refuses it ports" if facts.guarded else ""
    points.append(ok(f"{UNIT} runs {running}" + (f" from {facts.current}" if facts.current else "") + guard))
    return points
