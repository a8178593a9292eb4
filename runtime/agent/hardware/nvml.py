"""NVML through a long-lived child process with a deadline.

The child is kept between collections (opening the library wakes idle cards), killed and replaced when it misses
its deadline, and left behind when not even a kill ends it. A library that crashes takes only the child with it; one
that leaks is let go with the child that has grown too big.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.detector import CollectorError
from runtime.agent.hardware.nvml_child import LIBRARY
from runtime.agent.hardware.proc import own_bytes
from runtime.agent.hardware.tools import ToolError, ToolRunner, end_child, python_command, tool_environment

NAME = "NVML"
WSL_LIBRARIES = "/usr/lib/wsl/lib"
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    WSL_LIBRARIES,
    "/run/opengl-driver/lib",
)
LINKER_CACHE = Path("/etc/ld.so.cache")

ANSWER_LIMIT = 4 * 1024 * 1024

GROWN_MIB = 128
"""Memory of its own at which a child is replaced: several times what Python and the library take."""

CHILD = "runtime.agent.hardware.nvml_child"
END_GRACE_S = 1.0
MIB = 1024 * 1024

log = logging.getLogger(__name__)


def library_present() -> bool:
    """Whether the library is where the dynamic linker would find it (or in WSL's folder)."""
    extra = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if any(folder and (Path(folder) / LIBRARY).exists() for folder in (*extra, *LIBRARY_FOLDERS)):
        return True
    try:
        return LIBRARY.encode() + b"\0" in LINKER_CACHE.read_bytes()
    except OSError:
        return False


class NvmlChild:
    """Asks the child, one question at a time; CollectorError when there is no answer within ``deadline_s``."""

    def __init__(self, runner: ToolRunner, grown_mib: int = GROWN_MIB) -> None:
        self._runner = runner
        self._grown_mib = grown_mib
        self._lock = threading.Lock()
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._rest = b""

    def ask(self, word: str) -> dict[str, Any]:
        """The child's answer to ``collect``, ``wide`` or ``release``."""
        if not self._lock.acquire(blocking=False):
            raise CollectorError(f"{NAME} is still answering the last question")
        try:
            return self._ask(word)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the child; it is started again by the next question."""
        child, self._child = self._child, None
        if child is not None and not end_child(child):
            self._runner.leave_behind(NAME, child)
        if child is not None:
            _close_pipes(child)

    def _ask(self, word: str) -> dict[str, Any]:
        try:
            self._runner.refuse_stuck(NAME)
        except ToolError as error:
            raise CollectorError(str(error)) from None
        if self._child is not None and self._child.poll() is not None:
            self.close()
        if self._child is None:
            self._start()
        asked_at = time.monotonic()
        try:
            answer = json.loads(self._exchange(word))
        except (TimeoutError, OSError, ValueError) as error:
            child = self._child
            how = "" if isinstance(error, TimeoutError) or child is None else _end_of(child)
            self.close()
            if isinstance(error, TimeoutError):
                raise CollectorError(f"{NAME} did not answer in {self._runner.deadline_s:g} s") from None
            raise CollectorError(
                f"{NAME} crashed{how} {time.monotonic() - asked_at:.1f} s after it was asked; it is started anew"
            ) from None
        if self._child is not None and (own_bytes(self._child.pid) or 0) > self._grown_mib * MIB:
            log.warning("the child that asks %s has grown over %d MiB; it is replaced", NAME, self._grown_mib)
            self.close()
        if not isinstance(answer, dict):
            raise CollectorError(f"the {NAME} child answered with a {type(answer).__name__}")
        return answer

    def _start(self) -> None:
        environment = tool_environment()
        folders = environment.get("LD_LIBRARY_PATH", "")
        environment["LD_LIBRARY_PATH"] = ":".join(part for part in (folders, WSL_LIBRARIES) if part)
        self._rest = b""
        try:
            self._child = subprocess.Popen(
                python_command(CHILD),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise CollectorError(f"the {NAME} child could not be started: {error.strerror}") from None

    def _exchange(self, word: str) -> bytes:
        """Send one line, read one line; TimeoutError, or ValueError at the end of the child's output."""
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise ValueError("no child")
        deadline = time.monotonic() + self._runner.deadline_s
        child.stdin.write(word.encode() + b"\n")
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    raise TimeoutError
                piece = os.read(child.stdout.fileno(), 65536)
                if not piece or len(self._rest) > ANSWER_LIMIT:
                    raise ValueError("the child's output ended")
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _end_of(child: subprocess.Popen[bytes]) -> str:
    """`` (SIGSEGV)`` or `` (exit status 1)`` of a child whose output ended; nothing when it has not ended yet."""
    try:
        status = child.wait(END_GRACE_S)
    except subprocess.TimeoutExpired:
        return ""
    if status >= 0:
        return f" (exit status {status})"
    try:
        return f" ({signal.Signals(-status).name})"
    except ValueError:
        return f" (signal {-status})"


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass
