"""Finding vendors' tools, and running them so that a hung one harms nobody.

A tool runs as a child with a deadline. A child that does not end when it is killed is stuck in the kernel: it is
left behind and counted, never waited for, and while it lives the same tool is not started again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

FALLBACK_PATHS: dict[str, tuple[str, ...]] = {
    "nvidia-smi": ("/usr/lib/wsl/lib/nvidia-smi", "/opt/cuda/bin/nvidia-smi"),
    "nvidia-cuda-mps-control": ("/usr/lib/wsl/lib/nvidia-cuda-mps-control", "/opt/cuda/bin/nvidia-cuda-mps-control"),
}
"""Command -> where it may lie beside PATH, in order; looked at before PATH."""

DEADLINE_S = 10.0
OUTPUT_LIMIT = 4 * 1024 * 1024
KILL_GRACE_S = 1.0


class ToolError(Exception):
    """A tool could not be run to its end; the text names the tool and what happened."""


@dataclass(frozen=True)
class Output:
    """What a tool printed, decoded with replacement, and its exit status (negative: ended by that signal)."""

    stdout: str
    stderr: str
    status: int


def find_command(
    name: str,
    *,
    setting: Optional[str] = None,
    fixed: Sequence[str] = (),
    fallbacks: Optional[Mapping[str, Sequence[str]]] = None,
    path: Optional[str] = None,
) -> Optional[str]:
    """The path of a vendor's command, or None.

    ``setting`` (from agent.yaml or ``--tool``) is taken as it is; then ``fixed``, the vendor's own places; then
    the fallback table; then ``path`` (PATH when None). What is not an executable file is passed over.
    """
    if setting is not None:
        return setting
    table = FALLBACK_PATHS if fallbacks is None else fallbacks
    for candidate in (*fixed, *table.get(name, ())):
        if _is_executable(candidate):
            return candidate
    return shutil.which(name, path=path)


def _is_executable(path: str) -> bool:
    return Path(path).is_file() and os.access(path, os.X_OK)


class ToolRunner:
    """Runs tools one at a time per name, and remembers the ones that are stuck."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self._lock = threading.Lock()
        self._stuck: dict[str, subprocess.Popen[bytes]] = {}
        self._busy: set[str] = set()

    def stuck(self) -> list[str]:
        """Names of tools with a child that outlived its kill and still lives."""
        with self._lock:
            for name in [name for name, child in self._stuck.items() if child.poll() is not None]:
                del self._stuck[name]
            return sorted(self._stuck)

    def leave_behind(self, name: str, child: subprocess.Popen[bytes]) -> None:
        """``child`` did not end when it was killed: never wait for it, and start no other meanwhile."""
        with self._lock:
            self._stuck[name] = child

    def run(self, name: str, command: Sequence[str], *, deadline_s: Optional[float] = None) -> Output:
        """Run ``command``; ToolError when it cannot start, is stuck, or does not end within the deadline."""
        if name in self.stuck():
            raise ToolError(f"{name} is stuck in the kernel; it is not started again before it ends")
        with self._lock:
            if name in self._busy:
                raise ToolError(f"{name} is still running")
            self._busy.add(name)
        try:
            return self._run(name, command, self.deadline_s if deadline_s is None else deadline_s)
        finally:
            with self._lock:
                self._busy.discard(name)

    def _run(self, name: str, command: Sequence[str], deadline_s: float) -> Output:
        # Files, not pipes: a grandchild that keeps a pipe open would hold us past the deadline.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                child = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=tool_environment(),
                    start_new_session=True,
                    close_fds=True,
                )
            except OSError as error:
                raise ToolError(f"{name}: {command[0]}: {error.strerror}") from None
            try:
                status = child.wait(deadline_s)
            except subprocess.TimeoutExpired:
                if not end_child(child):
                    self.leave_behind(name, child)
                raise ToolError(f"{name} did not answer in {deadline_s:g} s") from None
            out.seek(0)
            err.seek(0)
            return Output(_text(out.read(OUTPUT_LIMIT)), _text(err.read(OUTPUT_LIMIT)), status)


def tool_environment() -> dict[str, str]:
    """The agent's environment without its secrets, and with messages in English."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HETEROFLEET_")}
    return {**kept, "LC_ALL": "C", "LANG": "C"}


def end_child(child: subprocess.Popen[bytes], grace_s: float = KILL_GRACE_S) -> bool:
    """Kill the child's whole group; False when it is still there after ``grace_s``."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
