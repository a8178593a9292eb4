"""Processes as transient units. Asked of systemd by its own commands, each with a deadline."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable
from runtime.agent.drivers.process.host import Live
from runtime.agent.drivers.process.output import segment_bytes
from runtime.agent.drivers.process.records import Folder, Record
from runtime.agent.drivers.process.sandbox import UNIT_PREFIX, drop_in, program, properties
from runtime.agent.hardware.tools import Output, ToolError, ToolRunner

RUNNING = Path("/run/systemd/system")
"""Is there when systemd is process 1 (sd_booted(3))."""

DROP_IN = RUNNING / f"{UNIT_PREFIX}task-.service.d" / "end.conf"
ASK_S = 10.0
START_S = 90.0
_GONE_STATES = ("inactive", "failed")
_NOBODY = re.compile(r"no main process to kill|not loaded|no such process|cannot find", re.IGNORECASE)


class Systemd:
    """``hidden``: what no task may see (see ``sandbox``)."""

    confined = True

    def __init__(self, folder: Folder, runner: ToolRunner, hidden: Sequence[str]) -> None:
        self._folder = folder
        self._runner = runner
        self._hidden = hidden
        self._asking = threading.Lock()
        self._version: Optional[int] = None

    def version(self) -> str:
        return f"systemd {self._number()}"

    def live(self, records: Sequence[Record]) -> dict[str, Live]:
        units = self._units(f"{UNIT_PREFIX}task-*.service")
        found = {}
        for record in records:
            unit = units.get(f"{record.unit}.service")
            if unit is not None and unit["ActiveState"] not in _GONE_STATES and unit["Description"].endswith(record.id):
                found[record.id] = Live(int(unit["MainPID"]))
        return found

    def taken(self, unit: str) -> bool:
        return bool(self._units(f"{unit}.service"))

    def start(self, record: Record) -> None:
        log_unit = self._log_unit(record)
        if not self._units(f"{log_unit}.service"):
            segment = segment_bytes(record.log_max_mib)
            end = self._folder.file(record.id, "end")
            self._run_unit(
                log_unit,
                f"Output of {record.unit}",
                ["Type=exec", "OOMScoreAdjust=-900", "KillMode=mixed"],
                ["/bin/sh", str(self._folder.path / ".pump"), str(self._folder.file(record.id, "out")), record.output,
                 str(segment), str(end)],
            )  # fmt: skip
        files = {name: self._folder.file(record.id, name) for name in ("go", "out", "started")}
        files.update(folder=self._folder.path, end_script=self._folder.path / ".end")
        self._folder.put(f"{record.unit}.unit", record.id.encode())
        self._put_drop_in(drop_in(files))
        said = properties(record, self._hidden, files, f"{log_unit}.service", self._number())
        first, *rest = program(record)
        argv = [shutil.which(first) or first, *rest]
        self._run_unit(record.unit, f"HeteroFleet task {record.unit} {record.id}", said, argv)

    def signal(self, record: Record, signal: str) -> bool:
        who = "all" if signal == "SIGKILL" else "main"
        done = self._call("systemctl", ["kill", f"--kill-who={who}", f"--signal={signal}", f"{record.unit}.service"])
        if done.status == 0:
            return True
        if _NOBODY.search(done.stderr):
            return False
        raise EngineUnavailable(f"systemctl kill: {_said(done)}")

    def clear(self, record: Record) -> None:
        self._folder.drop(f"{record.unit}.unit")
        log_unit = f"{self._log_unit(record)}.service"
        if self._units(log_unit):
            self._call("systemctl", ["kill", "--kill-who=all", "--signal=SIGKILL", log_unit])

    def file_changed_ns(self, path: str) -> Optional[int]:
        try:
            return Path(f"/proc/1/root{path}").stat().st_mtime_ns
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EngineUnavailable(f"{path} as systemd sees it: {error.strerror}") from None

    @staticmethod
    def _put_drop_in(text: str) -> None:
        """No reload follows: units that are not loaded yet may find it, and a reload by others will."""
        try:
            if not DROP_IN.exists() or DROP_IN.read_text() != text:
                DROP_IN.parent.mkdir(exist_ok=True)
                draft = DROP_IN.with_suffix(".new")
                draft.write_text(text)
                draft.rename(DROP_IN)
        except OSError as error:
            raise EngineUnavailable(f"{DROP_IN}: {error.strerror}") from None

    @staticmethod
    def _log_unit(record: Record) -> str:
        return f"{UNIT_PREFIX}output-{record.id[:32]}"

    def _units(self, pattern: str) -> dict[str, dict[str, str]]:
        """Loaded units, by name."""
        names = ("Id", "ActiveState", "MainPID", "Description", "LoadState")
        with self._asking:
            done = self._call("systemctl", ["show", f"--property={','.join(names)}", pattern], "systemctl show")
        if done.status != 0:
            raise EngineUnavailable(f"systemctl show: {_said(done)}")
        found = {}
        for block in done.stdout.split("\n\n"):
            unit = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
            if all(name in unit for name in names) and unit["LoadState"] != "not-found" and unit["MainPID"].isdigit():
                found[unit["Id"]] = unit
        return found

    def _run_unit(self, unit: str, description: str, said: Sequence[str], argv: Sequence[str]) -> None:
        words = ["--quiet", "--collect", f"--unit={unit}", f"--description={description}", "--slice=system.slice"]
        for setting in said:
            words += ["--property", setting]
        done = self._call("systemd-run", [*words, *argv], f"systemd-run {unit}", START_S)
        if done.status != 0:
            raise EngineRefused(500, f"systemd-run: {_said(done)}")

    def _call(
        self, command: str, words: Sequence[str], name: Optional[str] = None, deadline_s: float = ASK_S
    ) -> Output:
        try:
            return self._runner.run(name or f"{command} {' '.join(words)}", [command, *words], deadline_s=deadline_s)
        except ToolError as error:
            raise EngineUnavailable(str(error)) from None

    def _number(self) -> int:
        if self._version is None:
            done = self._call("systemctl", ["--version"])
            matched = re.match(r"systemd (\d+)", done.stdout)
            if matched is None:
                raise EngineUnavailable(f"systemctl --version: {_said(done)}")
            self._version = int(matched.group(1))
        return self._version


def _said(done: Output) -> str:
    text = " ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
    return text or f"exit code {done.status}"
