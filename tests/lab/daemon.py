"""A long-running process that the lab starts on the machine, remembers on disk and stops again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional

from tests.lab import places
from tests.lab.process import LabError, wait_for


class Daemon:
    """Known by pid and start time together, so that a reused pid is never taken for it."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def log(self) -> Path:
        return places.logs() / f"{self.name}.log"

    @property
    def _record_path(self) -> Path:
        return places.state() / f"{self.name}.json"

    @property
    def record(self) -> dict[str, str]:
        """What ``start`` wrote down; empty when this lab has not started it."""
        try:
            record = json.loads(self._record_path.read_text())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    @property
    def pid(self) -> Optional[int]:
        """The process id while it is alive, else None."""
        record = self.record
        pid = int(record.get("pid", "0"))
        return pid if pid and _start_ticks(pid) == record.get("ticks") else None

    def start(self, argv: Sequence[str], answers: Callable[[], object], timeout: float = 60, **notes: str) -> None:
        """Start it in a session of its own and wait until ``answers`` is True; ``notes`` go into the record."""
        places.make_folder(places.state())
        places.make_folder(places.logs())
        with self.log.open("ab") as output:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/"
            )
        record = {"pid": str(child.pid), "ticks": _start_ticks(child.pid), **notes}
        places.write_atomically(self._record_path, json.dumps(record).encode())

        def ended_or_answers() -> object:
            if child.poll() is not None:
                raise _Ended
            return answers()

        try:
            wait_for(f"{self.name} answers", ended_or_answers, timeout, 0.1, hint=f"Read {self.log}.")
        except _Ended:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
            raise LabError(
                f"{self.name} ended with exit code {child.returncode}; the end of {self.log}:\n{tail}"
            ) from None

    def signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is None:
            raise LabError(f"{self.name} does not run, or the lab has not started it")
        os.kill(pid, number)

    def stop(self, timeout: float = 30) -> None:
        """SIGTERM (and SIGCONT, in case it is frozen), wait, forget. One that is gone already is fine."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)
            deadline = time.monotonic() + timeout
            while self.pid is not None:
                if time.monotonic() > deadline:
                    raise LabError(f"{self.name} (pid {pid}) has not ended {timeout:g} s after SIGTERM")
                time.sleep(0.05)
                try:
                    os.waitpid(pid, os.WNOHANG)  # when this very process started it
                except ChildProcessError:
                    pass
        self.forget()

    def forget(self) -> None:
        self._record_path.unlink(missing_ok=True)


def running() -> list[Daemon]:
    """Every process that the lab has started and not stopped, dockerd and the registry among them."""
    known = (Daemon(path.stem) for path in sorted(places.state().glob("*.json")))
    return [daemon for daemon in known if daemon.pid is not None]


class _Ended(Exception):
    """The process ended while its first answer was awaited."""


def _start_ticks(pid: int) -> str:
    """Clock ticks from boot to the process's start; empty when it is gone or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
