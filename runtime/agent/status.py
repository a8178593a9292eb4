"""``status.json``: what the running agent says of itself, and what ``heterofleet-agent status`` makes of it."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Callable, Optional

from runtime.protocol.heartbeat import LoopState

FILE = "status.json"

EXIT_REGISTERED = 0
EXIT_NOT_REGISTERED = 1
EXIT_NO_AGENT = 3

ASK_AGAIN_S = 0.2


@dataclass(frozen=True)
class AgentStatus:
    """The agent's own view; ``tasks`` are the claims it holds, ``undelivered`` counts results.

    ``journal`` (``fault``, ``since``, ``set_aside``: see ``tasks.journal_health``) says whether work can be written
    down now, and which journals could not be trusted.
    ``process`` says whether plain processes run here, and whether anything keeps them; None: switched off.
    ``pid`` and ``boot_id`` tell whether the agent that wrote this still runs; ``seen_revision`` is the highest
    revision seen of ``control_plane_id``, which the next start goes on from; ``seen_revisions`` those of all that were
    heard lately.
    """

    node_id: str
    instance_id: str
    run: int
    version: str
    server_url: str
    control_plane_id: Optional[str] = None
    registered: bool = False
    last_beat_at: Optional[str] = None
    last_error: Optional[dict[str, str]] = None
    loops: list[LoopState] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    undelivered: int = 0
    journal: dict[str, Any] = field(default_factory=dict)
    foreign: Optional[list[dict[str, Any]]] = None
    stuck_tools: list[str] = field(default_factory=list)
    process: Optional[dict[str, Any]] = None
    pid: int = 0
    boot_id: Optional[str] = None
    seen_revision: Optional[int] = None
    seen_revisions: dict[str, int] = field(default_factory=dict)
    written_at: Optional[str] = None


_WRITING = threading.Lock()
"""Two at once would write one text into the other: the file's new form has one name."""


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Replace the file at once, mode 0600. It may be lost in a power cut, so it is not synced. Raises OSError; on a
    full disk only when not even the short form has room in the old file's place."""
    with _WRITING:
        _write(path, status)


def _write(path: Path, status: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            json.dump(status, handle)
        temporary.replace(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        temporary.unlink(missing_ok=True)
        if not _written_over(path, status):
            raise


def _written_over(path: Path, status: dict[str, Any]) -> bool:
    """A full disk: the old file has its place already, and what is said now goes there if it fits; the lists that
    may be long are left out then. Whoever reads at that very moment may find neither."""
    short = {**status, "tasks": [], "foreign": None, "loops": []}
    with path.open("r+b", buffering=0) as file:
        before = os.fstat(file.fileno())
        for told in (status, short):
            data = json.dumps(told).encode()
            if len(data) <= before.st_blocks * 512:
                file.write(data.ljust(before.st_size))  # never shorter: the place would be given up
                return True
    return False


def read_status(path: Path) -> Optional[dict[str, Any]]:
    """What was written last; None when there is nothing that can be read."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def is_running(status: dict[str, Any], boot_id: Optional[str]) -> bool:
    """Whether the process that wrote ``status`` still lives: same boot, and its pid is an agent's."""
    pid = status.get("pid")
    if not isinstance(pid, int) or status.get("boot_id") != boot_id:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"run" in command


@dataclass(frozen=True)
class Verdict:
    """What the command prints and returns."""

    exit_code: int
    status: Optional[dict[str, Any]]
    running: bool


def judge(status: Optional[dict[str, Any]], running: bool) -> Verdict:
    """0 registered, 1 not (or down), 3 no agent here. A stopped agent is not registered, whatever it last was."""
    if status is None:
        return Verdict(EXIT_NO_AGENT, None, False)
    registered = bool(status.get("registered")) and running
    shown = {**status, "registered": registered, "running": running}
    return Verdict(EXIT_REGISTERED if registered else EXIT_NOT_REGISTERED, shown, running)


def no_agent(path: Path) -> dict[str, Any]:
    """What stands where an agent's status would: the same members, of which nothing is known. Results may wait in a
    journal that is there all the same, so their number is null too."""
    members: dict[str, Any] = {member.name: None for member in fields(AgentStatus)}
    error = f"{path}: no agent has said anything here: none has run with this state folder yet"
    return {**members, "registered": False, "running": False, "loops": [], "stuck_tools": [], "error": error}


def wait_for_registration(
    look: Callable[[], Verdict],
    wait_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Verdict:
    """The verdict as soon as it is "registered", at the latest after ``wait_s``."""
    deadline = clock() + wait_s
    while True:
        verdict = look()
        remaining = deadline - clock()
        if verdict.exit_code == EXIT_REGISTERED or remaining <= 0:
            return verdict
        pause(min(ASK_AGAIN_S, remaining))


def as_text(verdict: Verdict) -> str:
    """For people: one fact a line."""
    status = verdict.status
    if status is None:
        return "no agent has run here yet: if one is installed, see `journalctl -u heterofleet-agent`"
    lines = [
        f"node        {status.get('node_id')}",
        f"instance    {status.get('instance_id')} (run {status.get('run')})",
        f"version     {status.get('version')}",
        f"server      {status.get('server_url')}",
        f"agent       {'runs (pid ' + str(status.get('pid')) + ')' if verdict.running else 'is down'}",
        f"registered  {'yes' if status.get('registered') else 'no'}",
        f"last beat   {status.get('last_beat_at') or 'none yet'}",
    ]
    error = status.get("last_error")
    if error:
        lines.append(f"last error  {error.get('code')} since {error.get('since')}: {error.get('text')}")
    overdue = [loop["name"] for loop in status.get("loops", []) if loop.get("overdue")]
    if overdue:
        lines.append(f"overdue     {', '.join(overdue)}")
    process = status.get("process")
    if process:
        kept = "each in a unit of its own" if process.get("confined") else "not confined: they read what their user may"
        lines.append(f"processes   {kept if process.get('available') else process.get('error')}")
    for name in ("undelivered", "stuck_tools"):
        if status.get(name):
            value = status[name]
            lines.append(f"{name:<11} {', '.join(value) if isinstance(value, list) else value}")
    lines += _about_journal(status.get("journal") or {})
    lines.append(f"tasks       {len(status.get('tasks', []))}")
    lines += [
        f"  {task.get('task_id')} attempt {task.get('attempt')} {task.get('phase')}" for task in status.get("tasks", [])
    ]
    if status.get("foreign"):
        lines.append(f"foreign     {len(status['foreign'])} containers of other control planes")
    return "\n".join(lines)


def _about_journal(journal: dict[str, Any]) -> list[str]:
    lines = []
    if journal.get("fault"):
        lines.append(
            f"journal     cannot be written since {journal.get('since')}: {journal['fault']}; nothing is claimed"
        )
    for aside in journal.get("set_aside") or ():
        lines.append(f"set aside   {aside.get('file')}: {aside.get('why') or 'why is not known any more'}")
    return lines
