"""Programs that a build runs (git, pip, pex): none of them may wait for ever, or outlive the build."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime.artifacts.errors import BuildError


def run(
    command: Sequence[str],
    what: str,
    *,
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    umask: int = -1,
    given: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, whatever its exit code, with ``given`` on standard input; ``what`` names it.

    Raises FileNotFoundError when it is not installed, and BuildError when it has not ended after ``deadline_s``
    seconds. It, and all that it started, is ended with us.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as starter:
        # In a thread of its own, since a signal may end the main one at any point: also there the child is known.
        starting = starter.submit(
            subprocess.Popen,
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            umask=umask,
            start_new_session=True,
        )
        try:
            child = starting.result()
            stdout, stderr = child.communicate(given, timeout=deadline_s)
        except subprocess.TimeoutExpired:
            _end(starting)
            raise BuildError(f"{what} was not done after {deadline_s:g} s; nothing was changed") from None
        except BaseException:
            _end(starting)
            raise
    return subprocess.CompletedProcess(command, child.returncode, stdout, stderr)


def _end(starting: concurrent.futures.Future[subprocess.Popen[bytes]]) -> None:
    with contextlib.suppress(OSError):  # it did not start, or has ended
        child = starting.result()
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def last_lines(output: bytes, count: int) -> str:
    """The end of what a program printed, without pip's warnings."""
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if not line.startswith("WARNING")]
    return "\n".join(lines[-count:])
