"""Finding vendors' tools, and running them so that a hung one harms nobody.

A tool runs as a child with a deadline, in a session of its own with all that it starts. What does not end when it is
killed is stuck in the kernel: it is left behind and counted, never waited for, and while it lives the same tool is not
started again. What it prints is read from pipes as it comes: a disk that is full or slow has no part in it, and one
that prints without end is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from runtime.agent.hardware.printed import MIB, OUTPUT_LIMIT, Printed
from runtime.agent.hardware.proc import session_members

FALLBACK_PATHS: dict[str, tuple[str, ...]] = {
    "nvidia-smi": ("/usr/lib/wsl/lib/nvidia-smi", "/opt/cuda/bin/nvidia-smi"),
    "nvidia-cuda-mps-control": ("/usr/lib/wsl/lib/nvidia-cuda-mps-control", "/opt/cuda/bin/nvidia-cuda-mps-control"),
}
"""Command -> where it may lie beside PATH, in order; looked at before PATH."""

DEADLINE_S = 10.0
KILL_GRACE_S = 1.0
KILL_POLL_S = 0.02


SIGNAL_BASE = 128
"""Of a shell's status for a program that a signal ended."""
CRASHES = {
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGHUP, signal.SIGILL, signal.SIGINT, signal.SIGKILL),
    *(signal.SIGPIPE, signal.SIGQUIT, signal.SIGSEGV, signal.SIGSYS, signal.SIGTERM, signal.SIGTRAP, signal.SIGXFSZ),
}


class ToolError(Exception):
    """A tool could not be run to its end; the text names the tool and what happened."""


@dataclass(frozen=True)
class Output:
    """What a tool printed, decoded with replacement, and its exit status (negative: ended by that signal)."""

    stdout: str
    stderr: str
    status: int

    @property
    def text(self) -> str:
        """All it printed: errors are on either stream."""
        return self.stdout + "\n" + self.stderr

    @property
    def signal(self) -> Optional[str]:
        """The signal that ended it, or the program that its script ran."""
        number = -self.status if self.status < 0 else self.status - SIGNAL_BASE
        return signal.Signals(number).name if number in CRASHES else None


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
        if is_executable(candidate):
            return candidate
    return shutil.which(name, path=path)


def is_executable(path: str) -> bool:
    return Path(path).is_file() and os.access(path, os.X_OK)


class ToolRunner:
    """Runs tools one at a time per name, and remembers the ones that are stuck."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self._lock = threading.Lock()
        self._stuck: dict[str, subprocess.Popen[bytes]] = {}
        self._stuck_since: dict[str, float] = {}
        self._busy: set[str] = set()

    def stuck(self) -> list[str]:
        """Names of tools with a child that outlived its kill and still lives."""
        with self._lock:
            for name in [name for name, child in self._stuck.items() if not _lives(child)]:
                del self._stuck[name]
            return sorted(self._stuck)

    def leave_behind(self, name: str, child: subprocess.Popen[bytes]) -> None:
        """``child`` did not end when it was killed: never wait for it, and start no other meanwhile."""
        with self._lock:
            self._stuck[name] = child
            self._stuck_since[name] = time.monotonic()

    def refuse_stuck(self, name: str) -> None:
        """Raises ToolError, which says for how long, while a child of that name is stuck."""
        if name not in self.stuck():
            return
        with self._lock:
            child, since = self._stuck.get(name), self._stuck_since[name]
        if child is not None:
            pid = child.pid if child.poll() is None else next(iter(session_members(child.pid)), child.pid)
            raise ToolError(
                f"{name} has been stuck in the kernel for {time.monotonic() - since:.0f} s (process {pid}); "
                "it is not started again before that process ends"
            )

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        deadline_s: Optional[float] = None,
        words: bytes = b"",
        environment: Optional[Mapping[str, str]] = None,
    ) -> Output:
        """Run ``command`` with ``words`` on its standard input and ``environment`` beside the agent's own; ToolError
        when it cannot start, is stuck, or does not end within the deadline."""
        self.refuse_stuck(name)
        with self._lock:
            if name in self._busy:
                raise ToolError(f"{name} is still running")
            self._busy.add(name)
        try:
            deadline_s = self.deadline_s if deadline_s is None else deadline_s
            return self._run(name, command, deadline_s, words, environment or {})
        finally:
            with self._lock:
                self._busy.discard(name)

    def _run(
        self, name: str, command: Sequence[str], deadline_s: float, words: bytes, environment: Mapping[str, str]
    ) -> Output:
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if words else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**tool_environment(), **environment},
                start_new_session=True,
                close_fds=True,
            )
        except OSError as error:
            raise ToolError(f"{name}: {command[0]}: {error.strerror}") from None
        try:
            reader = Printed(child, words)
        except OSError as error:  # no file descriptor is left for it
            end_child(child)
            raise ToolError(f"{name}: its output cannot be read: {error.strerror}") from None
        with contextlib.closing(reader) as printed:
            status = printed.until_end(time.monotonic() + deadline_s)
            # What it started and left running holds its output open: it goes as well, or there is one more each time.
            if (status is None or printed.held_open) and not end_child(child):
                self.leave_behind(name, child)
            if printed.too_much:
                raise ToolError(f"{name} printed more than {OUTPUT_LIMIT // MIB} MiB, and was ended")
            if status is None:
                raise ToolError(f"{name} did not answer in {deadline_s:g} s")
            return Output(*printed.texts(), status)


def tool_environment() -> dict[str, str]:
    """The agent's environment without its secrets, and with messages in English."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HETEROFLEET_")}
    return {**kept, "LC_ALL": "C", "LANG": "C"}


def end_child(child: subprocess.Popen[bytes], grace_s: float = KILL_GRACE_S) -> bool:
    """Kill the child and all that it started in its session; False when something is still there after ``grace_s``."""
    until = time.monotonic() + grace_s
    while True:
        for pid in {child.pid, *session_members(child.pid)} if child.poll() is None else session_members(child.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not _lives(child):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(KILL_POLL_S)


def _lives(child: subprocess.Popen[bytes]) -> bool:
    """A tool may be a script: its end is not that of the program that hangs."""
    return child.poll() is None or bool(session_members(child.pid))


# A child gets the parent's import path and where this package lies, so that it starts the same way from a checkout,
# a virtual environment and a single-file build, without the start-up cost of any of them.
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])
_START = (
    "import json,sys,importlib; sys.path[:]=json.loads(sys.argv.pop(1)); "
    "importlib.import_module(sys.argv.pop(1)).main()"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that calls ``main()`` of one of our modules in a child, with ``arguments`` in ``sys.argv[1:]``."""
    path = json.dumps([_PACKAGE_ROOT, *sys.path])
    return [sys.executable, "-I", "-S", "-c", _START, path, module, *arguments]
