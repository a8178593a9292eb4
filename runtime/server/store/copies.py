"""Copies of the database: made while a server works on it, tried with this release's migrations, put back.

SQLite is copied by its own online backup; PostgreSQL by ``pg_dump`` and ``psql``, which must be installed here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext
from sqlalchemy.exc import DBAPIError

from runtime.server.exit_codes import EXIT_CANNOT_WRITE, EXIT_CONFIGURATION, EXIT_REFUSED, EXIT_UNAVAILABLE
from runtime.server.store import pg_tools
from runtime.server.store.database import Database
from runtime.server.store.errors import StoreError
from runtime.server.store.migrate import head, known_schemas, migrate

SCRATCH = "rehearsal"


@dataclass(frozen=True)
class State:
    """What is in a database. ``schema`` None: nothing of ours; ``known``: this release may serve it."""

    schema: str | None
    head: str
    known: bool
    revision: int | None = None
    control_plane_id: str | None = None
    release: str | None = None


@dataclass(frozen=True)
class Rehearsal:
    """A copy was brought from schema ``before`` to ``after``; ``seconds`` is what the migrations alone took."""

    before: str | None
    after: str
    seconds: float
    size: int


def state(db: Database) -> State:
    """Look, and change nothing; an SQLite file that is not there is not made. Raises StoreError."""
    path = sqlite_path(db)
    if path is not None:
        return _state_of_file(path) if path.exists() else State(None, head(), True)
    with _words_of(db), db.engine.connect() as connection:
        schema = MigrationContext.configure(connection).get_current_revision()
        if schema is None:
            return State(None, head(), True)
        row = connection.execute(sa.text("SELECT * FROM control_plane")).mappings().first()
    return _state(schema, dict(row or {}))


def _state(schema: str, row: Mapping[str, Any]) -> State:
    """``row`` is the control plane's, as that schema has it."""
    return State(schema, head(), schema in known_schemas(), *map(row.get, ("revision", "id", "release")))


def backup(db: Database, target: Path) -> State:
    """Write a copy to ``target`` (0600), whole or not at all, and say what is in it. Raises StoreError."""
    with _beside(target) as beside:
        if db.is_sqlite:
            _copy_file(_existing(db), beside)
            found = _state_of_file(beside)
        else:
            found = state(db)
            pg_tools.dump(db.url, beside)
        _sync(beside)
        beside.replace(target)
    return found


def restore(db: Database, source: Path) -> State:
    """Make the database what ``source`` (of :func:`backup`) holds, while no server uses it. Raises StoreError."""
    if db.is_sqlite:
        db.hold()
        path = _path(db)
        if _state_of_file(source).schema is None:
            raise StoreError(EXIT_CONFIGURATION, f"{source} is not a copy of a database of ours.")
        with _beside(path) as beside:
            _copy_file(source, beside)
            _keep_owner(path, beside)
            _sync(beside)
            # The log of the old file first: beside the new one it would be taken for the new one's.
            for side in ("-wal", "-shm"):
                Path(f"{path}{side}").unlink(missing_ok=True)
            beside.replace(path)
    else:
        with _words_of(db), db.engine.connect() as connection:
            others = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            busy = connection.execute(sa.text(others)).scalar_one()
        db.engine.dispose()
        if busy:
            raise StoreError(EXIT_REFUSED, f"{busy} others are connected to the database; stop every server first.")
        pg_tools.load(db.url, source)
    return state(db)


def rehearse(db: Database) -> Rehearsal | None:
    """Migrate a copy of the database, which nobody notices, and throw it away; None: there is nothing to migrate.

    Raises what :func:`migrate` raises, and StoreError when no copy can be made.
    """
    before = state(db)
    if before.schema is None:
        return None
    with _sqlite_scratch(db) if db.is_sqlite else _postgresql_scratch(db) as (scratch, size):
        try:
            began = time.monotonic()
            migrate(scratch)
            seconds = time.monotonic() - began
            scratch.start()
        finally:
            scratch.close()
    return Rehearsal(before.schema, head(), round(seconds, 3), size)


@contextlib.contextmanager
def _sqlite_scratch(db: Database) -> Iterator[tuple[Database, int]]:
    path = _existing(db)
    size = path.stat().st_size
    free = shutil.disk_usage(path.parent).free
    if free < 2 * size:
        raise StoreError(
            EXIT_CANNOT_WRITE,
            f"A rehearsal needs {2 * size / 1e6:.0f} MB beside {path} and {free / 1e6:.0f} MB are free.",
        )
    # A folder: a migration leaves files beside its database.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{SCRATCH}-") as folder:
        copy = Path(folder) / path.name
        _copy_file(path, copy)
        yield Database(f"sqlite:///{copy}"), size


@contextlib.contextmanager
def _postgresql_scratch(db: Database) -> Iterator[tuple[Database, int]]:
    name = f"{db.url.database}_{SCRATCH}"
    url = db.url.set(database=name)
    quoted = db.engine.dialect.identifier_preparer.quote(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dump.sql"
        pg_tools.dump(db.url, file)
        with _words_of(db), db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            try:
                connection.execute(sa.text(f"DROP DATABASE IF EXISTS {quoted}"))
                connection.execute(sa.text(f"CREATE DATABASE {quoted} TEMPLATE template0"))
            except DBAPIError as error:
                raise StoreError(
                    EXIT_CONFIGURATION,
                    f"The copy for the rehearsal, the database {name}, cannot be made ({_first_line(error)}); give the "
                    "role CREATEDB.",
                ) from None
            try:
                pg_tools.load(url, file)
                yield Database(url.render_as_string(hide_password=False)), file.stat().st_size
            finally:
                connection.execute(sa.text(f"DROP DATABASE IF EXISTS {quoted} WITH (FORCE)"))


def sqlite_path(db: Database) -> Path | None:
    """The file of an SQLite database; None: another kind of database."""
    return Path(str(db.url.database)) if db.is_sqlite and db.url.database else None


def _path(db: Database) -> Path:
    path = sqlite_path(db)
    if path is None:
        raise StoreError(EXIT_CONFIGURATION, "A database in memory has no copies.")
    return path


def _existing(db: Database) -> Path:
    path = _path(db)
    if not path.exists():
        raise StoreError(EXIT_CONFIGURATION, f"There is no database {path}.")
    return path


def _state_of_file(path: Path) -> State:
    """Read without the engine, which would make the file one with a log beside it."""
    try:
        with contextlib.closing(_opened(path)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
                return State(None, head(), True)
            schema = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            connection.row_factory = sqlite3.Row
            row = connection.execute("SELECT * FROM control_plane").fetchone()
    except sqlite3.Error as error:
        raise StoreError(EXIT_CONFIGURATION, f"{path} cannot be read as a database ({error}).") from None
    return _state(schema[0], dict(row or {})) if schema else State(None, head(), True)


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _copy_file(source: Path, target: Path) -> None:
    """``source`` as of one moment, in one file of mode 0600 that needs no other beside it."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    try:
        with (
            contextlib.closing(_opened(source)) as opened,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            opened.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise StoreError(EXIT_CANNOT_WRITE, f"{source} cannot be copied to {target.parent} ({error}).") from None


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    beside = target.with_name(f".{target.name}.new")
    try:
        yield beside
    except OSError as error:
        raise StoreError(EXIT_CANNOT_WRITE, f"{target} cannot be written ({error.strerror}).") from None
    finally:
        for side in ("", "-wal", "-shm", "-journal"):
            Path(f"{beside}{side}").unlink(missing_ok=True)


def _keep_owner(path: Path, beside: Path) -> None:
    if path.exists() and os.geteuid() == 0:
        os.chown(beside, path.stat().st_uid, path.stat().st_gid)


def _sync(path: Path) -> None:
    for place in (path, path.parent):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _words_of(db: Database) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        code = EXIT_CONFIGURATION if db.is_sqlite else EXIT_UNAVAILABLE
        name = db.url.render_as_string(hide_password=True)
        raise StoreError(code, f"The database {name} cannot be read ({_first_line(error)}).") from None


def _first_line(error: DBAPIError) -> str:
    return (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
