"""The store on both databases: migrations, writes, what is refused and how that is said."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import Problem
from runtime.server.services.events import emit
from runtime.server.store import refusals, tables
from runtime.server.store.database import Database
from runtime.server.store.errors import StoreError
from runtime.server.store.migrate import head, migrate
from runtime.server.store.transaction import Tx
from runtime.server.store.vault import Vault, VaultError
from tests.integration.postgres import Postgres
from tests.integration.server_core.plane import wait_until


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    migrate(made)
    made.start()
    yield made
    made.close()


def count_events(db: Database) -> int:
    with db.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(tables.events)).scalar_one()


def test_the_migrations_make_the_tables(db: Database) -> None:
    with db.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
        assert context.get_current_revision() == head()


def test_ends_on_record_are_counted_when_the_counts_are_made(db: Database, database_url: str) -> None:
    place = {"node_id": "n", "scheduled_at": "2026-01-01T00:00:00.000Z", "gpus": []}
    reasons = ["exited", "exited", None, "node_lost"]
    rows = [{"uid": str(number), "attempt": 1, "reason": reason, **place} for number, reason in enumerate(reasons)]
    with db.engine.connect().execution_options(heterofleet_write=True) as connection, connection.begin():
        connection.execute(sa.insert(tables.attempts), rows)
        connection.execute(sa.text("DROP TABLE end_counts"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0006'"))
    migrate(Database(database_url))
    with db.read() as connection:
        found = dict(connection.execute(sa.select(tables.end_counts.c.reason, tables.end_counts.c.count)).all())
    assert found == {"exited": 2, "node_lost": 1}


def test_migrating_again_changes_nothing_and_keeps_the_identity(db: Database, database_url: str) -> None:
    again = Database(database_url)
    migrate(again)
    again.start()
    assert again.control_plane_id == db.control_plane_id != ""
    again.close()


def test_processes_that_start_together_migrate_once(database_url: str) -> None:
    databases = [Database(database_url) for _ in range(4)]
    failures: list[Exception] = []

    def start(one: Database) -> None:
        try:
            migrate(one)
            one.start()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(one,)) for one in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len({one.control_plane_id for one in databases}) == 1
    for one in databases:
        one.close()


def test_a_migration_under_way_is_waited_for(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path / 'test.db'}")
    with Path(f"{tmp_path / 'test.db'}.migrating").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        inode = f":{os.fstat(file.fileno()).st_ino} "
        waiting = threading.Thread(target=migrate, args=(db,))
        waiting.start()
        wait_until(lambda: [line for line in locks() if "->" in line and inode in line], "it waits for the lock")
        with sqlite3.connect(tmp_path / "test.db") as looking:
            assert looking.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    waiting.join(30)
    db.start()
    assert db.control_plane_id
    db.close()


def locks() -> list[str]:
    return Path("/proc/locks").read_text().splitlines()


def test_a_newer_database_is_refused_with_the_release_that_fits(db: Database, database_url: str) -> None:
    with db.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(sa.update(tables.control_plane).values(release="9.4.0"))
    late = Database(database_url)
    with pytest.raises(StoreError) as refused:
        migrate(late)
    late.close()
    assert refused.value.exit_code == 78
    assert "release 9.4.0 or a later one" in str(refused.value)


def test_one_bad_change_hurts_nobody_else(db: Database) -> None:
    """Changes share a commit; each is still all or nothing."""
    outcomes: dict[int, str] = {}
    gate = threading.Barrier(20)

    def change(number: int) -> None:
        def write(tx: Tx) -> None:
            emit(tx, EventKind.OPERATOR_ACTION, code=str(number))
            if number % 2:
                raise ValueError(number)

        gate.wait()
        try:
            db.write(write)
            outcomes[number] = "kept"
        except ValueError:
            outcomes[number] = "refused"

    threads = [threading.Thread(target=change, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes == {number: "refused" if number % 2 else "kept" for number in range(20)}
    assert count_events(db) == 10


def test_every_change_of_tasks_gets_a_revision_of_its_own(db: Database) -> None:
    heard: list[int] = []
    db.on_revision(heard.append)
    db.write(lambda tx: tx.touch_task("none"))
    db.write(lambda tx: emit(tx, EventKind.OPERATOR_ACTION))
    db.write(lambda tx: tx.touch_instruction("none"))
    assert heard == [1, 2]
    assert db.revision == 2


def test_after_a_commit_and_only_then(db: Database) -> None:
    done: list[str] = []

    def fails(tx: Tx) -> None:
        tx.after(lambda: done.append("after a refusal"))
        raise ValueError

    with pytest.raises(ValueError):
        db.write(fails)
    db.write(lambda tx: tx.after(lambda: done.append("after a commit")))
    assert done == ["after a commit"]


def test_a_closed_database_refuses_at_once(database_url: str) -> None:
    db = Database(database_url)
    migrate(db)
    db.start()
    db.close()
    with pytest.raises(Problem) as refused:
        db.write(lambda tx: None)
    assert refused.value.code == "starting"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    db = Database(f"sqlite:///{tmp_path / 'file' / 'x' / 'heterofleet.db'}")
    with pytest.raises(StoreError) as refused:
        migrate(db)
    assert refused.value.exit_code == 73
    assert "cannot be written" in str(refused.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database, but long enough to be read as one" * 50)
    db = Database(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(StoreError) as refused:
        migrate(db)
    assert refused.value.exit_code == 78


def test_a_database_server_that_is_not_there() -> None:
    db = Database("postgresql+psycopg://someone:hushhush@127.0.0.1:9/none?connect_timeout=2")
    with pytest.raises(StoreError) as refused:
        migrate(db)
    assert refused.value.exit_code == 69
    assert "hushhush" not in str(refused.value)


def test_the_vault_keeps_its_key_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secret.key"
    sealed = Vault(path).seal({"password": "hush"})
    assert b"hush" not in sealed
    assert path.stat().st_mode & 0o777 == 0o600
    again = Vault(path)
    assert again.open(sealed) == {"password": "hush"}
    assert again.digest(b"x") == Vault(path).digest(b"x") != Vault(tmp_path / "other.key").digest(b"x")
    with pytest.raises(VaultError):
        Vault(tmp_path / "other.key").open(sealed)


def test_a_key_file_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "secret.key").write_text("nonsense")
    with pytest.raises(StoreError) as refused:
        Vault(tmp_path / "secret.key").load()
    assert refused.value.exit_code == 78


def test_a_postgresql_host_that_vanished_is_given_up(postgres: Postgres) -> None:
    with postgres.database() as url:
        made = Database(f"{url.replace('postgresql://', 'postgresql+psycopg://')}?connect_timeout=3")
        with made.engine.connect() as connection:
            link = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
        made.engine.dispose()
    assert (link["connect_timeout"], link["tcp_user_timeout"], link["keepalives_idle"]) == ("3", "10000", "10")


def test_a_database_that_is_away_is_not_said_with_every_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_said", {})
    made = Database(f"sqlite:///{tmp_path / 'none.db'}")
    for _ in range(50):
        with pytest.raises(Problem), made.read() as connection:
            connection.execute(sa.select(tables.events))
    assert sum("did not take the statement" in record.message for record in caplog.records) == 1
    made.engine.dispose()
