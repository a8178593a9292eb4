"""What is kept of each process: small files in one folder that only root can read, all named after the process's id.

``ID.json``: what it shall be. ``ID.go``: the script that becomes the program, with its variables. ``ID.out``: the pipe
for its output. ``ID.asked``: its start was asked for, in which run of the machine. ``ID.started`` and ``ID.end``: the
moments of both, and in the latter how it ended (written by ``end.sh`` and ``supervise.sh``). ``ID.pid``: who it is,
where no systemd keeps that. The folder lies in /run: it is empty after a restart of the machine, as is the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from runtime.agent.drivers.errors import EngineUnavailable
from runtime.protocol.times import to_wire

FOLDER = Path("/run/heterofleet/processes")
SUFFIXES = ("go", "out", "asked", "started", "end", "pid", "ready", "json")
"""The record itself goes last: a removal that is cut short is taken up again."""

_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class Record:
    """A process as it was made. ``unit`` is its name; ``user``, ``uid`` and ``gid`` as resolved (see ``users``);
    ``mounts`` are (source, target, read only). ``created_at`` in seconds since the epoch."""

    id: str
    unit: str
    labels: dict[str, str]
    created_at: float
    output: str
    user: Optional[str] = None
    uid: Optional[int] = None
    gid: Optional[int] = None
    mounts: tuple[tuple[str, str, bool], ...] = ()
    cards: tuple[str, ...] = ()
    devices: Optional[tuple[str, ...]] = None
    cpus: Optional[float] = None
    memory_mib: Optional[int] = None
    log_max_mib: int = 50


@dataclass(frozen=True)
class End:
    """How it ended, and when. ``exit_code`` as a shell counts: 128 and the signal's number for a signal; None when
    nobody can say. ``failed``: it never ran, in systemd's words."""

    at: str
    exit_code: Optional[int]
    oom_killed: bool = False
    failed: Optional[str] = None


@dataclass(frozen=True)
class Marks:
    """What its files say so far. ``asked`` holds the mark of the machine's run in which the start was asked for."""

    asked: Optional[str] = None
    asked_at: Optional[str] = None
    started_at: Optional[str] = None
    end: Optional[tuple[str, str]] = field(default=None)
    """(moment, line)"""


class Folder:
    """The files. Made without side effects. Raises EngineUnavailable where they cannot be read or written."""

    def __init__(self, path: Path = FOLDER) -> None:
        self.path = path

    def make(self) -> None:
        with _as_driver_error():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)

    def file(self, record_id: str, suffix: str) -> Path:
        return self.path / f"{record_id}.{suffix}"

    def all(self) -> list[Record]:
        """Every record that is whole; an empty list where there is no folder."""
        with _as_driver_error():
            try:
                names = [path.name for path in self.path.iterdir()]
            except FileNotFoundError:
                return []
        ids = [name[:-5] for name in names if name.endswith(".json")]
        return [record for record in map(self.read, sorted(ids)) if record is not None]

    def read(self, record_id: str) -> Optional[Record]:
        """None when there is none of that id."""
        if _ID.fullmatch(record_id) is None:
            return None
        with _as_driver_error():
            try:
                body = json.loads(self.file(record_id, "json").read_bytes())
            except (FileNotFoundError, ValueError):
                return None
        return _record(body)

    def save(self, record: Record, script: str) -> None:
        """Both are on their places, whole, when this returns: the record last."""
        self.make()
        with _as_driver_error():
            self._write(self.file(record.id, "go"), script.encode())
            self._write(self.file(record.id, "json"), json.dumps(asdict(record)).encode())

    def put(self, name: str, content: bytes) -> None:
        """A file beside the records, whole or not at all."""
        with _as_driver_error():
            self._write(self.path / name, content)

    def drop(self, name: str) -> None:
        """Fine when it is not there."""
        with _as_driver_error():
            (self.path / name).unlink(missing_ok=True)

    def marks(self, record_id: str) -> Marks:
        with _as_driver_error():
            asked, end = self._text(record_id, "asked"), self._text(record_id, "end")
            return Marks(
                asked=None if asked is None else asked[1],
                asked_at=None if asked is None else asked[0],
                started_at=_at(self.file(record_id, "started")),
                end=end,
            )

    def forget_run(self, record_id: str) -> None:
        """Before a further start: what the one before has left."""
        with _as_driver_error():
            for suffix in ("started", "end", "pid", "ready", "out"):
                self.file(record_id, suffix).unlink(missing_ok=True)

    def remove(self, record_id: str) -> None:
        with _as_driver_error():
            for suffix in SUFFIXES:
                self.file(record_id, suffix).unlink(missing_ok=True)

    def _text(self, record_id: str, suffix: str) -> Optional[tuple[str, str]]:
        path = self.file(record_id, suffix)
        try:
            text = path.read_text("utf-8", "replace")
        except FileNotFoundError:
            return None
        at = _at(path)
        return None if at is None else (at, text.strip())

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        draft = path.with_name(f".{path.name}.new")
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:  # noqa: PTH123 (a descriptor)
            file.write(content)
        draft.rename(path)


def _record(body: dict[str, Any]) -> Record:
    known = {name: value for name, value in body.items() if name in Record.__dataclass_fields__}
    for name in ("mounts", "cards", "devices"):
        if known.get(name) is not None:
            known[name] = tuple(tuple(item) if isinstance(item, list) else item for item in known[name])
    return Record(**known)


def _at(path: Path) -> Optional[str]:
    try:
        seconds = path.stat().st_mtime
    except FileNotFoundError:
        return None
    return to_wire(datetime.fromtimestamp(seconds, timezone.utc))


@contextlib.contextmanager
def _as_driver_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EngineUnavailable(f"{error.filename or FOLDER}: {error.strerror}") from None
