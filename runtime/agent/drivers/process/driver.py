"""The driver of plain processes: the same calls as of Docker, over records in a folder and a host that runs them."""

from __future__ import annotations

import os
import pkgutil
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, Optional

from runtime.agent.drivers.driver import LABEL_UID, ContainerPlan, EngineFacts, Facts, RunTimes, Seen
from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable, NotThere, StreamSilent
from runtime.agent.drivers.output import LogPiece, LogRest
from runtime.agent.drivers.process.changes import names_put
from runtime.agent.drivers.process.devices import DevicesUnknown, device_files
from runtime.agent.drivers.process.ends import read_end
from runtime.agent.drivers.process.host import Host, Live
from runtime.agent.drivers.process.output import Output
from runtime.agent.drivers.process.records import End, Folder, Marks, Record
from runtime.agent.drivers.process.sandbox import UNIT_PREFIX
from runtime.agent.drivers.process.script import go_script
from runtime.agent.drivers.process.users import UserRefused, home_of, run_as

ENGINE_ID = "processes"
SILENCE_S = 300.0
GONE_S = 10.0
SCRIPTS = ("pump", "end", "supervise")
NO_HOST = "plain processes need systemd on this node, or process_unconfined: true"


class ProcessDriver:
    """``host`` None: this node has nothing that runs processes. ``boot`` marks this run of the machine; ``output``
    is the folder of all outputs. Safe to use from many threads."""

    images = None
    outlives_machine = False

    def __init__(
        self, host: Optional[Host], folder: Folder, output: Path, boot: str, *, enabled: bool, allow_root: bool = False
    ) -> None:
        self._host = host
        self._folder = folder
        self._output = output
        self._boot = boot
        self._allow_root = allow_root
        self.enabled = enabled
        self._making = threading.Lock()

    @property
    def confined(self) -> bool:
        return self._host is not None and self._host.confined

    def has_traces(self) -> bool:
        try:
            return bool(self._folder.all())
        except EngineUnavailable:
            return True

    def engine(self) -> EngineFacts:
        if self._host is None:
            if self.enabled:
                raise EngineUnavailable(NO_HOST)
            return EngineFacts(ENGINE_ID, None, live_restore=True)
        return EngineFacts(ENGINE_ID, self._host.version() if self.enabled else None, live_restore=True)

    def wall(self) -> float:
        """Ends are dated by the machine's own clock."""
        return time.time()

    def started_at(self) -> Optional[str]:
        """Nothing that this driver asks ends what it runs by its own restart."""
        return None

    def run_times(self) -> Optional[RunTimes]:
        """No engine's going down ends a process."""
        return None

    def ended_by_itself(self, container_id: str) -> bool:
        return False

    def was_signalled(self, container_id: str) -> Optional[bool]:
        return None

    def list_own(self) -> list[Seen]:
        records = self._folder.all()
        if self._host is None and (records or self.enabled):
            raise EngineUnavailable(NO_HOST)
        live = self._live(records)
        found = []
        for record in records:
            state = self._state(live.get(record.id), self._folder.marks(record.id))[0]
            found.append(Seen(record.id, record.unit, state, dict(record.labels), record.created_at))
        return found

    def inspect(self, container_id: str) -> Facts:
        record = self._record(container_id)
        live = self._live([record]).get(record.id)
        marks = self._folder.marks(record.id)
        state, end = self._state(live, marks)
        started = marks.started_at or (marks.asked_at if state != "created" else None)
        return Facts(
            id=record.id,
            name=record.unit,
            state=state,
            running=state == "running",
            exit_code=end.exit_code if end is not None else None,
            error=(end.failed or "") if end is not None else "",
            oom_killed=end is not None and end.oom_killed,
            started_at=started,
            finished_at=end.at if end is not None and state == "exited" else None,
            labels=dict(record.labels),
            pid=live.pid if live is not None else 0,
            network_mode="host",
            cards=record.cards,
            sources=tuple(source for source, _, _ in record.mounts),
        )

    def create(self, plan: ContainerPlan, spare_name: str) -> str:
        host = self._there()
        uid = plan.labels.get(LABEL_UID, "")
        try:
            who = run_as(plan.user, uid, self._allow_root)
            devices = (*device_files(plan.gpus), *plan.files)
        except (UserRefused, DevicesUnknown) as refused:
            raise EngineRefused(400, str(refused)) from None
        argv = [*(plan.entrypoint or ()), *(plan.command or ())]
        if not argv:
            raise EngineRefused(400, "there is nothing to run: neither entrypoint nor command")
        with self._making:
            record_id = secrets.token_hex(32)
            output = self._output / record_id
            record = Record(
                id=record_id,
                unit=self._free_name(host, UNIT_PREFIX + plan.name, UNIT_PREFIX + spare_name),
                labels=dict(plan.labels),
                created_at=time.time(),
                output=str(output),
                user=who.name,
                uid=who.uid,
                gid=who.gid,
                mounts=tuple((mount.source, mount.target, mount.read_only) for mount in plan.mounts),
                cards=tuple(gpu.uuid for gpu in plan.gpus),
                devices=devices,
                cpus=plan.cpus,
                memory_mib=plan.memory_mib,
                log_max_mib=plan.log_max_mib,
            )
            try:
                output.mkdir(mode=0o700, parents=True)
            except OSError as error:
                raise EngineUnavailable(f"{output}: {error.strerror}") from None
            self._folder.save(record, go_script(argv, plan.env, plan.workdir, home_of(who)))
        return record_id

    def start(self, container_id: str) -> None:
        host, record = self._there(), self._record(container_id)
        if self._runs(host, record):
            return
        self._await_gone(host, record)
        for name in SCRIPTS:
            self._folder.put(f".{name}", pkgutil.get_data(__package__, f"{name}.sh") or b"")
        self._folder.forget_run(record.id)
        try:
            os.mkfifo(self._folder.file(record.id, "out"), 0o600)
            Path(record.output).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EngineUnavailable(f"{error.filename}: {error.strerror}") from None
        self._folder.put(f"{record.id}.asked", self._boot.encode())
        refused: Optional[EngineRefused] = None
        try:
            host.start(record)
        except EngineRefused as error:
            refused = error
        marks = self._folder.marks(record.id)
        end = self._state(None, marks)[1] if marks.end is not None else None
        if end is not None and end.failed is not None:
            said = f"{refused.text.rstrip('.')}: " if refused is not None else ""
            raise EngineRefused(500, f"{said}{end.failed}")
        if refused is not None and (end is None or marks.started_at is None):
            raise refused
        # Else it ran, though it may have been over before the host could say that it had begun.

    def signal(self, container_id: str, signal: str) -> bool:
        try:
            return self._there().signal(self._record(container_id), signal)
        except NotThere:
            return False

    def never_restart(self, container_id: str) -> None:
        """Nothing here starts a program twice."""

    def remove(self, container_id: str, force: bool = False) -> None:
        host = self._there()
        try:
            record = self._record(container_id)
        except NotThere:
            if set(container_id) <= set("0123456789abcdef") and len(container_id) == 64:
                self._clear_output(self._output / container_id)
            return
        if self._runs(host, record):
            if not force:
                raise EngineRefused(409, f"{record.unit} still runs")
            host.signal(record, "SIGKILL")
            raise EngineUnavailable(f"{record.unit} is being ended")
        host.clear(record)
        self._clear_output(Path(record.output))
        self._folder.remove(record.id)

    def missing_program(self, container_id: str) -> Optional[str]:
        """Never: the shell says it in the output, and its exit code (127, 126) is the program's end."""
        return None

    def changed_ns(self, container_id: str, path: str) -> Optional[int]:
        """Of what is at ``path`` (a volume's place) before the start: its source, as the host sees it."""
        record = self._record(container_id)
        for source, target, _ in record.mounts:
            if target.rstrip("/") == path.rstrip("/"):
                return self._there().file_changed_ns(source)
        return None

    # Output

    def log_rest(self, container_id: str, limit_bytes: int, after: str = "", thorough: bool = True) -> LogRest:
        return self._output_of(container_id).rest(limit_bytes, after)

    def log_follow(
        self, container_id: str, after: str, on_open: Callable[[Callable[[], None]], None]
    ) -> Iterator[LogPiece]:
        return self._output_of(container_id).follow(after, on_open)

    def events(self, on_open: Callable[[Callable[[], None]], None]) -> Iterator[str]:
        """The uid of each task whose process ended."""
        if not self.enabled and not self._folder.path.exists():
            _nothing_happens(on_open)
        self._folder.make()
        for name in names_put(self._folder.path, on_open, SILENCE_S):
            record_id, _, suffix = name.partition(".")
            record = self._folder.read(record_id) if suffix == "end" else None
            if record is not None:
                yield record.labels.get(LABEL_UID, "")

    # Parts

    def _there(self) -> Host:
        if self._host is None:
            raise EngineUnavailable(NO_HOST)
        return self._host

    def _record(self, record_id: str) -> Record:
        record = self._folder.read(record_id)
        if record is None:
            raise NotThere(404, f"no process {record_id[:12]}")
        return record

    def _runs(self, host: Host, record: Record) -> bool:
        live = host.live([record])
        return record.id in live and self._folder.marks(record.id).end is None

    @staticmethod
    def _await_gone(host: Host, record: Record) -> None:
        """Before a further start: the host may still be clearing up after the one before."""
        limit, pause = time.monotonic() + GONE_S, threading.Event()
        while record.id in host.live([record]):
            if time.monotonic() > limit:
                raise EngineUnavailable(f"{record.unit} is not gone yet")
            pause.wait(0.1)

    def _live(self, records: Sequence[Record]) -> dict[str, Live]:
        """Asked before the marks are read: an end that is written down later than that is missed, never invented."""
        asked = [record for record in records if self._may_run(record)]
        return self._there().live(asked) if asked else {}

    def _may_run(self, record: Record) -> bool:
        return self._folder.file(record.id, "asked").exists() and not self._folder.file(record.id, "end").exists()

    def _state(self, live: Optional[Live], marks: Marks) -> tuple[str, Optional[End]]:
        """(state in Docker's words, end)."""
        if marks.asked is None:
            return "created", None
        if marks.end is None and live is not None:
            return "running", None
        if marks.end is not None:  # written when all of it is gone
            end = read_end(*marks.end, started=marks.started_at is not None)
            return ("created", end) if end.failed is not None else ("exited", end)
        if marks.started_at is not None or marks.asked != self._boot:
            return "exited", None  # it ran, it is gone, and nobody wrote down how
        return "created", None

    def _free_name(self, host: Host, name: str, spare: str) -> str:
        names = {record.unit for record in self._folder.all()}
        for candidate in (name, spare):
            if candidate not in names and not host.taken(candidate):
                return candidate
        raise EngineRefused(409, f"container name {spare} is already in use")

    def _output_of(self, container_id: str) -> Output:
        record = self._folder.read(container_id)
        if record is None:
            return Output(self._output / container_id, lambda: False)

        def ended() -> bool:
            return self._folder.file(record.id, "end").exists()

        return Output(Path(record.output), ended)

    @staticmethod
    def _clear_output(folder: Path) -> None:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise EngineUnavailable(f"{folder}: {error.strerror}") from None


def _nothing_happens(on_open: Callable[[Callable[[], None]], None]) -> None:
    """A node that runs no processes and has none: until somebody closes, or it is time to look again."""
    closed = threading.Event()
    on_open(closed.set)
    closed.wait(SILENCE_S)
    raise StreamSilent("no processes are run here")
