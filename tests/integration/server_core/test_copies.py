"""`heterofleet server backup|restore` and `migrate --rehearse|--show`, on a database that a server may be using."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path

import pytest

from runtime.server.exit_codes import EXIT_CONFIGURATION, EXIT_UNAVAILABLE
from runtime.server.services import tokens
from runtime.server.store import copies
from runtime.server.store.database import Database
from runtime.server.store.errors import StoreError
from runtime.server.store.migrate import head, migrate
from tests.lab.control_plane import HETEROFLEET

NOW = tokens.times.now()


@pytest.fixture
def db(tmp_path: Path):
    """A database in use, with one token."""
    made = Database(f"sqlite:///{tmp_path / 'heterofleet.db'}")
    migrate(made)
    made.hold()
    made.start()
    tokens.create(made, "first", "admin", NOW, None)
    yield made
    made.close()


def names(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    found = {row[0] for row in connection.execute("SELECT name FROM tokens")}
    connection.close()
    return found


def cli(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [HETEROFLEET, "server", *words, "--mode", "dev", "--state-dir", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_copy_is_whole_private_and_of_one_moment(db: Database, tmp_path: Path) -> None:
    found = copies.backup(db, tmp_path / "copy.db")
    tokens.create(db, "second", "admin", NOW, None)
    copy = tmp_path / "copy.db"
    assert (copy.stat().st_mode & 0o777, names(copy)) == (0o600, {"first"})
    assert (found.schema, found.known, found.control_plane_id) == (head(), True, db.control_plane_id)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "copy.db-"))] == []


def test_a_copy_takes_the_place_of_the_database_when_nobody_serves_it(db: Database, tmp_path: Path) -> None:
    path, copy = tmp_path / "heterofleet.db", tmp_path / "copy.db"
    copies.backup(db, copy)
    tokens.create(db, "second", "admin", NOW, None)
    with pytest.raises(StoreError) as refused:
        copies.restore(Database(f"sqlite:///{path}"), copy)
    assert refused.value.exit_code == EXIT_UNAVAILABLE
    db.close()
    other = Database(f"sqlite:///{path}")
    copies.restore(other, copy)
    other.close()
    assert names(path) == {"first"}
    assert (path.stat().st_mode & 0o777, names(copy)) == (0o600, {"first"})


def test_what_is_no_copy_of_ours_takes_no_place(db: Database, tmp_path: Path) -> None:
    db.close()
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("not a database, " * 100)
    for name in ("empty.db", "text.db"):
        again = Database(f"sqlite:///{tmp_path / 'heterofleet.db'}")
        with pytest.raises(StoreError) as refused:
            copies.restore(again, tmp_path / name)
        again.close()
        assert refused.value.exit_code == EXIT_CONFIGURATION
    assert names(tmp_path / "heterofleet.db") == {"first"}


def test_a_rehearsal_changes_nothing_and_leaves_nothing(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = copies.rehearse(db)
    assert tried is not None
    assert (tried.before, tried.after) == (head(), head())

    def fails(scratch: Database) -> None:
        migrate(scratch)
        tokens_of = sqlite3.connect(str(scratch.url.database))
        tokens_of.execute("DELETE FROM tokens")
        tokens_of.commit()
        tokens_of.close()
        raise RuntimeError("this data does not fit")

    monkeypatch.setattr(copies, "migrate", fails)
    with pytest.raises(RuntimeError):
        copies.rehearse(db)
    assert names(tmp_path / "heterofleet.db") == {"first"}
    assert [path.name for path in tmp_path.iterdir() if copies.SCRATCH in path.name] == []


def test_a_database_that_is_not_there_is_looked_at_and_not_made(tmp_path: Path) -> None:
    looked = cli(tmp_path / "none", "migrate", "--show", "-o", "json")
    assert json.loads(looked.stdout)["schema"] is None, looked.stderr
    assert json.loads(cli(tmp_path / "none", "migrate", "--rehearse", "-o", "json").stdout)["before"] is None
    assert not (tmp_path / "none").exists()
    assert cli(tmp_path / "none", "backup", str(tmp_path / "copy.db")).returncode == EXIT_CONFIGURATION


def test_a_schema_of_a_later_release_is_told(db: Database, tmp_path: Path) -> None:
    db.close()
    connection = sqlite3.connect(tmp_path / "heterofleet.db")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    found = json.loads(cli(tmp_path, "migrate", "--show", "-o", "json").stdout)
    assert (found["schema"], found["known"], found["head"]) == ("9999", False, head())
    assert cli(tmp_path, "migrate", "--rehearse").returncode == EXIT_CONFIGURATION
