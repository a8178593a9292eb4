"""Running programs, telling progress, and the lab's one error class."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Optional, Union


class LabError(RuntimeError):
    """Something the lab needs is not as wanted; the text says what was found, wanted, and what to do."""


def run(
    argv: Sequence[Union[str, Path]],
    *,
    input: Union[str, bytes, None] = None,
    timeout: Optional[float] = 120,
    check: bool = True,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[Path] = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its output as text.

    Without ``input`` the program's standard input is empty: nothing can wait for a keyboard. A failure or
    an overrun of ``timeout`` becomes a :class:`LabError` with the command and the end of its output.
    """
    words = [str(word) for word in argv]
    data = input.encode() if isinstance(input, str) else input
    try:
        done = subprocess.run(
            words,
            input=data if data is not None else b"",
            capture_output=True,
            timeout=timeout,
            env=None if env is None else dict(env),
            cwd=cwd,
        )
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is not installed on this machine ({error})") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"no end after {timeout:g} s: {shlex.join(words)}") from error
    result = subprocess.CompletedProcess(
        words, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )
    if check and result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip())[-2000:]
        raise LabError(f"exit code {result.returncode}, wanted 0: {shlex.join(words)}\n{said}")
    return result


class Progress:
    """One line on stderr for each finished step, with the seconds since the start."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        if not self.quiet:
            with self._lock:
                print(f"[lab {time.monotonic() - self._began:6.1f} s] {text}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Say the step when it ends, with its own seconds; a failing step is named before the error."""
        began = time.monotonic()
        try:
            yield
        except BaseException:
            self.say(f"{text}: FAILED after {time.monotonic() - began:.1f} s")
            raise
        self.say(f"{text}: {time.monotonic() - began:.1f} s")


def wait_for(what: str, probe: Callable[[], object], timeout: float, interval: float = 0.1, hint: str = "") -> None:
    """Call ``probe`` until it returns True; what it returned or raised last is in the error otherwise."""
    deadline = time.monotonic() + timeout
    last: object = None
    while True:
        try:
            last = probe()
            if last is True:
                return
        except LabError as error:
            last = error
        if time.monotonic() >= deadline:
            raise LabError(f"{what}: not so after {timeout:g} s; last seen: {last}. {hint}".rstrip())
        time.sleep(interval)
