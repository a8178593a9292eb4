"""Bringing the database to this release's schema, at start, by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError

from runtime.protocol import times
from runtime.protocol.build import this_build
from runtime.server.exit_codes import EXIT_CANNOT_WRITE, EXIT_CONFIGURATION, EXIT_UNAVAILABLE
from runtime.server.store import tables
from runtime.server.store.database import Database
from runtime.server.store.errors import StoreError

log = logging.getLogger(__name__)

SCRIPTS = Path(__file__).resolve().parent / "migrations"
ADVISORY_LOCK = 0x48465F4D4947  # "HF_MIG"


def migrate(db: Database) -> None:
    """Run what is missing, and make the control plane's row in a fresh database.

    Raises StoreError: 73 when the file cannot be written, 69 when the server does not answer, 78 when the
    database is newer than this program or is none.
    """
    if db.is_sqlite:
        _make_folder(db)
    try:
        with _one_at_a_time(db), db.engine.connect() as connection:
            connection = connection.execution_options(heterofleet_write=True)
            with connection.begin():
                _upgrade(connection)
                _introduce(connection)
    except OperationalError as error:
        if getattr(error.orig, "sqlite_errorname", None) == "SQLITE_ERROR":
            raise _foreign(db, error) from None  # not the disk: a table that must be there is not
        raise _unusable(db, error) from None
    except InterfaceError as error:
        raise _unreachable(db, error) from None
    except DatabaseError as error:
        raise _foreign(db, error) from None


def head() -> str:
    """The schema revision of this release."""
    revision = _scripts().get_current_head()
    assert revision is not None
    return revision


def known_schemas() -> set[str]:
    """Every schema that this release can begin from."""
    return {script.revision for script in _scripts().walk_revisions()}


def _scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    return ScriptDirectory.from_config(config)


def _upgrade(connection: sa.Connection) -> None:
    scripts = _scripts()
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in known_schemas():
        raise _newer(connection, current)

    def steps(revision: str, _context: MigrationContext) -> list[RevisionStep]:
        return scripts._upgrade_revs("head", revision)

    with EnvironmentContext(config, scripts, fn=steps, destination_rev="head") as environment:
        environment.configure(connection=connection, target_metadata=tables.metadata, render_as_batch=True)
        environment.run_migrations()


def _newer(connection: sa.Connection, current: str) -> StoreError:
    release = None
    if "release" in {column["name"] for column in sa.inspect(connection).get_columns("control_plane")}:
        release = connection.execute(sa.text("SELECT release FROM control_plane")).scalar()
    return StoreError(
        EXIT_CONFIGURATION,
        f"The database was migrated by release {release or 'unknown'} (schema {current}), this is "
        f"{this_build().version} (schema {head()}); start release {release or 'that wrote it'} or a later one.",
    )


def _introduce(connection: sa.Connection) -> None:
    plane = tables.control_plane
    row = connection.execute(sa.select(plane)).first()
    release = this_build().version
    if row is None:
        connection.execute(
            sa.insert(plane).values(
                id=str(uuid.uuid4()), revision=0, created_at=times.to_wire(times.now()), release=release
            )
        )
    elif row.release != release:
        connection.execute(sa.update(plane).values(release=release))


@contextlib.contextmanager
def _one_at_a_time(db: Database) -> Iterator[None]:
    if db.is_sqlite:
        if db.url.database in (None, "", ":memory:"):
            yield
            return
        # A lock of its own: the database's write lock would time out during a long migration.
        with Path(f"{db.url.database}.migrating").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        return
    with db.engine.connect() as connection:
        connection.execute(sa.select(sa.func.pg_advisory_lock(ADVISORY_LOCK)))
        try:
            yield
        finally:
            connection.execute(sa.select(sa.func.pg_advisory_unlock(ADVISORY_LOCK)))
            connection.commit()


def _make_folder(db: Database) -> None:
    if db.url.database in (None, "", ":memory:"):
        return
    folder = Path(str(db.url.database)).resolve().parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = Path(f"{db.url.database}.migrating")
        lock.touch(mode=0o600)
        lock.open("a").close()
        if not Path(str(db.url.database)).exists():
            # SQLite would let everyone read it, and gives its side files the same mode.
            Path(str(db.url.database)).touch(mode=0o600)
    except OSError as error:
        raise StoreError(
            EXIT_CANNOT_WRITE,
            f"The database's folder {folder} cannot be written ({error.strerror}); give the server's user the "
            "folder, or set state_dir or database_url.",
        ) from None


def _foreign(db: Database, error: DBAPIError) -> StoreError:
    return StoreError(
        EXIT_CONFIGURATION,
        f"{_name(db)} is not a database of ours ({_words(error)}); move it away, or name another in database_url.",
    )


def _unusable(db: Database, error: OperationalError) -> StoreError:
    if not db.is_sqlite:
        return _unreachable(db, error)
    return StoreError(
        EXIT_CANNOT_WRITE,
        f"{_name(db)} cannot be written ({_words(error)}); look at the file's owner, its mode and the free space.",
    )


def _unreachable(db: Database, error: DBAPIError) -> StoreError:
    return StoreError(
        EXIT_UNAVAILABLE,
        f"{_name(db)} does not take the connection ({_words(error)}); check database_url and that it runs.",
    )


def _name(db: Database) -> str:
    if db.is_sqlite:
        return f"The database file {db.url.database}"
    return f"The database {db.url.render_as_string(hide_password=True)}"


def _words(error: DBAPIError) -> str:
    text = str(error.orig).strip() or type(error.orig).__name__
    return text.splitlines()[0]
