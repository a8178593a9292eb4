"""Processes without systemd: each under a small supervisor of its own that outlives the agent.

Nothing keeps such a process from what its user may read. All that came from it is found again, and ended, by its
control groups where the host lets us make some, else by its session.
"""

from __future__ import annotations

import os
import shutil
import signal as signals
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from runtime.agent.drivers.driver import DEFAULT_PATH
from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable
from runtime.agent.drivers.process import groups
from runtime.agent.drivers.process.host import Live
from runtime.agent.drivers.process.output import segment_bytes
from runtime.agent.drivers.process.records import Folder, Record
from runtime.agent.drivers.process.sandbox import become
from runtime.agent.hardware.proc import SESSION, START, STATE, stat_of
from runtime.agent.hardware.tools import ToolError, ToolRunner

START_S = 30.0

# The supervisor gets a parent that is none of ours, and the start has happened when it says so.
_LAUNCH = 'mkfifo -m 600 "$1" && { shift; "$@" </dev/null >/dev/null 2>&1 & } && read -r _ <"$READY" && rm -f "$READY"'


class Unconfined:
    confined = False

    def __init__(self, folder: Folder, runner: ToolRunner) -> None:
        self._folder = folder
        self._runner = runner

    def version(self) -> str:
        return "without systemd"

    def live(self, records: Sequence[Record]) -> dict[str, Live]:
        found = {}
        for record in records:
            supervisor, child = self._marks(record)
            program = child if child is not None and _is(child) else None
            if program is not None or (supervisor is not None and _is(supervisor)):
                found[record.id] = Live(program[0] if program is not None else 0)
        return found

    def taken(self, unit: str) -> bool:
        return False

    def start(self, record: Record) -> None:
        made = groups.make(record.id, record.cpus, record.memory_mib)
        ready = self._folder.file(record.id, "ready")
        supervise = ["/bin/sh", str(self._folder.path / ".supervise"), str(self._folder.path), record.id, record.output,
                     str(segment_bytes(record.log_max_mib)), "\n".join(made), *self._program(record)]  # fmt: skip
        words = ["/usr/bin/env", "-i", f"PATH={DEFAULT_PATH}", f"READY={ready}", "/bin/sh", "-c", _LAUNCH, "sh",
                 str(ready), *supervise]  # fmt: skip
        try:
            done = self._runner.run(f"supervisor of {record.unit}", words, deadline_s=START_S)
        except ToolError as error:
            raise EngineUnavailable(str(error)) from None
        if done.status != 0:
            raise EngineRefused(500, f"the process cannot be started: {done.stderr.strip() or done.status}")

    def signal(self, record: Record, signal: str) -> bool:
        number = getattr(signals, signal)
        _, child = self._marks(record)
        if signal != "SIGKILL":
            if child is None or not _is(child):
                return False
            return _kill(child[0], number)
        targets = set(groups.members(record.id))
        # When it is over its number may be another's, and that one's session is no business of ours.
        if child is not None and _is(child):
            targets |= _session(child[0])
        reached = [_kill(pid, number) for pid in targets]
        return True in reached

    def clear(self, record: Record) -> None:
        groups.remove(record.id)

    def file_changed_ns(self, path: str) -> Optional[int]:
        try:
            return Path(path).stat().st_mtime_ns
        except OSError:
            return None

    def _program(self, record: Record) -> list[str]:
        """Mounts in a namespace of its own, then the user, then the shell that reads the script."""
        first, *rest = become(record)
        path = shutil.which(first)
        if path is None:
            raise EngineRefused(500, "setpriv is not here: a process cannot be given its user (package util-linux)")
        steps = ["set -e"]
        arguments: list[str] = []
        for source, target, read_only in record.mounts:
            arguments += [source, target]
            held, place = (f'"${{{len(arguments) + offset}}}"' for offset in (-1, 0))
            steps.append(f"if [ -d {held} ]; then mkdir -p {place}; else : >>{place}; fi")
            steps.append(f"mount --rbind {held} {place}")
            if read_only:
                steps.append(f"mount -o remount,bind,ro {place}")
        steps += [f"shift {len(arguments)}", ': >"$1.started"', 'echo 1<>"$1.ready"', "shift", 'exec "$@"']
        apart = ["unshare", "--mount", "--propagation", "private"] if record.mounts else []
        marks = str(self._folder.path / record.id)
        return [*apart, "/bin/sh", "-c", "\n".join(steps), "sh", *arguments, marks, path, *rest, "/bin/sh"]

    def _marks(self, record: Record) -> tuple[Optional[tuple[int, str]], Optional[tuple[int, str]]]:
        """Supervisor and program as (pid, start time); None for what is not known."""
        try:
            lines = self._folder.file(record.id, "pid").read_text("ascii", "replace").splitlines()
        except FileNotFoundError:
            return None, None
        except OSError as error:
            raise EngineUnavailable(f"{error.filename}: {error.strerror}") from None
        found = [_mark(line) for line in lines]
        return (found[0] if found else None), (found[1] if len(found) > 1 else None)


def _mark(line: str) -> Optional[tuple[int, str]]:
    words = line.split()
    return (int(words[0]), words[1]) if len(words) == 2 and words[0].isdigit() else None


def _is(mark: tuple[int, str]) -> bool:
    """Whether the process with that number is still the one that it was, and not over."""
    found = stat_of(mark[0])
    return found is not None and found[START] == mark[1] and found[STATE] not in "ZX"


def _session(leader: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_of(int(entry.name))
            if fields is not None and fields[SESSION] == str(leader):
                found.add(int(entry.name))
    return found


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
