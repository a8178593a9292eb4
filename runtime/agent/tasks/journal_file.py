"""The journal's file: looked at before it is trusted, and set aside when it cannot be; never repaired by guess.

Set aside means renamed beside the new one, with the time in its name and with its write-ahead log, so that people
can still read it with ``sqlite3``. The newest ``KEPT`` of them stay, older ones go. A file that cannot be read or
written *now* (the disk is full, another program holds it) is no reason: it stays where it is.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from runtime.agent.tasks.journal_health import SetAside
from runtime.protocol.times import now, to_wire

log = logging.getLogger(__name__)

FILE_NAME = "journal.db"
FORMAT = 1
KEPT = 5
"""How many journals that were set aside are kept."""

ASIDE = ".broken-"
_BESIDE = ("-wal", "-shm")
_MAGIC = b"SQLite format 3\0"
_CACHE_KIB = 512
"""SQLite's own page cache: it fills up in time, and is most of what a journal could take of the agent's memory."""

_TABLES: dict[str, tuple[str, ...]] = {
    "claims": (
        "uid TEXT NOT NULL", "attempt INTEGER NOT NULL", "task_id TEXT NOT NULL", "control_plane_id TEXT NOT NULL",
        "claim_token TEXT NOT NULL", "stage TEXT NOT NULL", "container_id TEXT", "body TEXT NOT NULL",
        "updated_at REAL NOT NULL",
    ),
    "outbox": (
        "uid TEXT NOT NULL", "attempt INTEGER NOT NULL", "body TEXT NOT NULL", "created_at REAL NOT NULL",
        "delivered_at REAL", "outcome TEXT",
    ),
    "instructions": ("channel TEXT NOT NULL", "id TEXT NOT NULL", "body TEXT NOT NULL", "updated_at REAL NOT NULL"),
    "facts": ("name TEXT NOT NULL", "value TEXT NOT NULL"),
    "told": ("uid TEXT NOT NULL", "attempt INTEGER NOT NULL", "revision INTEGER NOT NULL"),
    "set_aside": (
        "what TEXT NOT NULL", "uid TEXT NOT NULL", "attempt INTEGER NOT NULL", "body TEXT NOT NULL", "at REAL NOT NULL",
    ),
}  # fmt: skip
_KEYS = {"claims": "uid, attempt", "outbox": "uid, attempt", "instructions": "channel, id", "facts": "name",
         "told": "uid, attempt"}  # fmt: skip
_LATER = ("set_aside", "told")
"""Tables that a journal of this format may lack: it was made before they were needed."""

# Counted with every beat and pruned every minute: without it each of those would read all log tails.
_INDEX = "CREATE INDEX IF NOT EXISTS outbox_delivered ON outbox (delivered_at)"


class JournalError(OSError):
    """The change is not on disk; what it protects must not be done."""


class _Unfit(Exception):
    """What is in the file cannot be trusted; says why."""


def open_file(path: Path) -> tuple[sqlite3.Connection, Optional[SetAside]]:
    """A connection to a journal that can be trusted and written, and what was set aside for it.

    Raises JournalError when the folder, or the file as it is now, cannot be written; nothing has changed then.
    """
    try:
        return _connect(path), None
    except _Unfit as unfit:
        why = str(unfit)
    except sqlite3.OperationalError as error:
        if _is_about_now(error) or not _is_there(path):
            raise JournalError(unwritable(path, error)) from error
        why = f"cannot be opened ({error})"
    except sqlite3.DatabaseError as error:
        why = f"cannot be read ({error})"
    return replace_file(path, why)


def replace_file(path: Path, why: str) -> tuple[sqlite3.Connection, SetAside]:
    """Set the file aside and make a new one. When that fails the old one is where it was: JournalError."""
    try:
        name, moved = _move_aside(path)
    except OSError as error:
        raise JournalError(f"the journal {path} {why}, and cannot be set aside ({error.strerror})") from error
    try:
        connection = _connect(path)
    except (sqlite3.Error, _Unfit) as error:
        _move_back(moved)
        raise JournalError(unwritable(path, error)) from error
    aside = SetAside(name, to_wire(now()), why)
    log.error("the journal %s %s; it was set aside as %s, and running tasks are taken over from their containers",
              path, why, aside.file)  # fmt: skip
    _drop_oldest(path)
    return connection, aside


def set_aside_files(path: Path) -> list[str]:
    """Names of the journals that were set aside, oldest first."""
    found = {entry.name for entry in path.parent.glob(f"{path.name}{ASIDE}*")}
    return sorted({name[: -len(end)] if (end := _ending(name)) else name for name in found})


def unwritable(path: Path, error: Exception) -> str:
    advice = "free some space" if "full" in str(error) else "look at the free space, the file system and its mode"
    return f"the journal {path} cannot be written ({error}); {advice}"


def place(path: Path) -> tuple[Optional[tuple[int, int]], Optional[tuple[int, int]]]:
    """Which files lie at the journal's place and at its log's, by device and inode."""
    return _inode(path), _inode(_beside(path, "-wal"))


def _connect(path: Path) -> sqlite3.Connection:
    new = not _is_there(path)
    if not new:
        _look_at(path)
    connection: Optional[sqlite3.Connection] = None
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        if not new:
            _examine(connection)  # before anything of it is changed
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for name in _TABLES:
                connection.execute(_creation(name))
            connection.execute(f"PRAGMA user_version={FORMAT}")
        for name in _LATER:
            connection.execute(_creation(name))
        connection.execute(_INDEX)
        connection.execute("COMMIT")
        path.chmod(0o600)
    except BaseException:
        if connection is not None:
            connection.close()
        if new:
            _remove(path)  # half made: the next start must not take it for one that was lost
        raise
    return connection


def _look_at(path: Path) -> None:
    """What can be said before SQLite touches it (which waits for a reader at a pipe, and empties some logs)."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise _Unfit("leads nowhere" if path.is_symlink() else "is gone, and its log is left") from None
    if not stat.S_ISREG(found.st_mode):
        raise _Unfit("is no file")
    if found.st_size == 0:
        raise _Unfit("is empty")
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise _Unfit("may not be read and written")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise _Unfit("is no database")  # SQLite would say so, too, and throw its log away


def _examine(connection: sqlite3.Connection) -> None:
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _Unfit(f"is damaged ({verdict})")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, FORMAT):
        raise _Unfit(f"is of format {version}, and this release knows {FORMAT}: another release wrote it")
    there = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if version == 0 and not there <= _TABLES.keys():
        raise _Unfit("is the database of another program")
    for name, columns in _TABLES.items():
        if name not in there:
            if version == 0 or name in _LATER:
                continue
            raise _Unfit(f"is damaged (it has no table {name})")
        found = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
        missing = [column for column in (text.split()[0] for text in columns) if column not in found]
        if missing:
            raise _Unfit(f"is of another format (its table {name} has no {', '.join(missing)})")


def _creation(table: str) -> str:
    key = [f"PRIMARY KEY ({_KEYS[table]})"] if table in _KEYS else []
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join([*_TABLES[table], *key])})"


def _is_about_now(error: sqlite3.OperationalError) -> bool:
    return any(word in str(error) for word in ("full", "locked"))


def _is_there(path: Path) -> bool:
    """Whether something lies there that a new journal would be made over: the file, a dead link, a log with words."""
    wal = _beside(path, "-wal")
    return os.path.lexists(path) or (wal.is_file() and wal.stat().st_size > 0)


def _move_aside(path: Path) -> tuple[str, list[tuple[Path, Path]]]:
    """The name that it has now, and where each of its files was and is.

    The log goes first: a crash in between leaves a journal that is set aside next.
    """
    target = path
    while any(os.path.lexists(_beside(target, end)) for end in ("", *_BESIDE)):
        target = path.with_name(f"{path.name}{ASIDE}{now():%Y%m%dT%H%M%S.%fZ}")
    moved: list[tuple[Path, Path]] = []
    try:
        for end in (*_BESIDE, ""):
            if os.path.lexists(_beside(path, end)):
                _beside(path, end).rename(_beside(target, end))
                moved.append((_beside(path, end), _beside(target, end)))
    except OSError:
        _move_back(moved)
        raise
    return target.name, moved


def _move_back(moved: Iterable[tuple[Path, Path]]) -> None:
    for before, after in moved:
        if os.path.lexists(after):
            after.rename(before)


def _drop_oldest(path: Path) -> None:
    for name in set_aside_files(path)[:-KEPT]:
        log.info("%s is dropped: the %d newest journals that were set aside are kept", name, KEPT)
        _remove(path.with_name(name))


def _remove(path: Path) -> None:
    for end in ("", *_BESIDE):
        try:
            _beside(path, end).unlink()
        except OSError:
            continue  # not there, or a folder, which is nobody's journal


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _ending(name: str) -> str:
    return next((end for end in _BESIDE if name.endswith(end)), "")


def _inode(path: Path) -> Optional[tuple[int, int]]:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
