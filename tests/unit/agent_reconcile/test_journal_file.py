"""Files that are no journal: each is set aside and said, none is lost, and the agent starts with a new one."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runtime.agent.tasks.journal import FILE_NAME, Journal, open_journal
from runtime.agent.tasks.journal_file import FORMAT, KEPT
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage
from runtime.protocol.states import Status
from runtime.protocol.tasks import TaskSpec

CLAIM = ClaimRecord(Key("uid-0", 1), "a", "cp", "token", Stage.RUNNING, TaskSpec(name="a"), container_id="c" * 64)


def claim(number: int, stage: Stage = Stage.RUNNING) -> ClaimRecord:
    return dataclasses.replace(CLAIM, key=Key(f"uid-{number}", 1), stage=stage)


def letter(number: int, tail: str = "tail") -> Letter:
    return Letter(Key(f"uid-{number}", 1), "a", "cp", "token", Status.RUNNING, Status.FAILED, "exited", 3, None, tail)


def used(folder: Path) -> Path:
    """A journal that was in use, closed."""
    journal = open_journal(folder)
    for number in range(12):
        journal.save(claim(number))
    journal.close()
    return folder / FILE_NAME


def raw(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeros(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def noise(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def letter_to_colleagues(path: Path) -> None:
    path.write_bytes(b"Dear colleagues, this is a letter and no journal.\n" * 200)


def page_in_the_middle(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 4096)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def only_the_log(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}-wal"))


def folder_as_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").mkdir()


def another_program(path: Path) -> None:
    path.unlink()
    raw(path, "CREATE TABLE songs (title TEXT)")


def later_format(path: Path) -> None:
    raw(path, f"PRAGMA user_version={FORMAT + 1}")


def without_a_table(path: Path) -> None:
    raw(path, "DROP TABLE claims")


def without_a_column(path: Path) -> None:
    raw(path, "ALTER TABLE outbox RENAME COLUMN outcome TO result")


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (empty, "is empty"),
    (half, "cannot be read"),
    (zeros, "is no database"),
    (noise, "is no database"),
    (letter_to_colleagues, "is no database"),
    (page_in_the_middle, "is damaged"),
    (pipe, "is no file"),
    (folder_in_its_place, "is no file"),
    (link_to_nowhere, "leads nowhere"),
    (only_the_log, "is gone, and its log is left"),
    (folder_as_log, "cannot be opened"),
    (another_program, "is the database of another program"),
    (later_format, "another release wrote it"),
    (without_a_table, "has no table claims"),
    (without_a_column, "has no outcome"),
]


def contents(folder: Path, name: str) -> dict[str, bytes]:
    """The files of one journal by their ending; what is no file has no bytes."""
    return {
        path.name[len(name) :]: path.read_bytes() if path.is_file() else b""
        for path in folder.iterdir()
        if path.name.startswith(name) and not path.name.endswith("-shm")
    }


@pytest.mark.case("FC-009")
@pytest.mark.parametrize(("damage", "why"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_a_bad_journal_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], why: str
) -> None:
    """A state file of no bytes stopped the client for good, and the advice was to delete everything."""
    path = used(tmp_path)
    damage(path)
    before = contents(tmp_path, FILE_NAME)
    with caplog.at_level(logging.WARNING):
        journal = open_journal(tmp_path)
    assert journal.claims() == [] and journal.lost
    (line,) = caplog.messages
    (aside,) = journal.health().set_aside
    assert why in line and why in aside.why and aside.file in line
    assert contents(tmp_path, aside.file) == before, "nothing of it is lost"
    journal.save(CLAIM)
    journal.close()
    again = open_journal(tmp_path)
    assert again.claims() == [CLAIM] and not again.lost
    assert again.health().set_aside == (aside,), "it is still told of after a restart"
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0
    again.close()


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A folder of user nobody, who we are in the meantime: nothing is read-only for root."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() != 0:
        yield folder
        shutil.rmtree(folder)
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


@pytest.mark.parametrize("mode", [0o400, 0o000])
def test_a_file_that_may_not_be_written_is_set_aside(nobodys: Path, mode: int) -> None:
    path = used(nobodys)
    path.chmod(mode)
    journal = open_journal(nobodys)
    journal.save(CLAIM)
    assert len(journal.health().set_aside) == 1
    journal.close()


def test_a_folder_that_may_not_be_written_changes_nothing(nobodys: Path) -> None:
    path = used(nobodys)
    path.chmod(0o400)
    nobodys.chmod(0o500)
    with pytest.raises(OSError, match="journal"):
        open_journal(nobodys)
    nobodys.chmod(0o700)
    path.chmod(0o600)
    journal = open_journal(nobodys)
    assert len(journal.claims()) == 12 and not journal.lost
    journal.close()


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    """Also when several are set aside within one second."""
    for number in range(KEPT + 3):
        (tmp_path / FILE_NAME).write_bytes(b"x" * (number + 1))
        journal = open_journal(tmp_path)
        journal.close()
    kept = sorted(path for path in tmp_path.iterdir() if ".broken-" in path.name and path.suffix != ".db-shm")
    assert [path.stat().st_size for path in kept] == [4, 5, 6, 7, 8]
    assert [aside.file for aside in journal.health().set_aside] == [path.name for path in kept]


def test_a_healthy_journal_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    used(tmp_path)
    journal = open_journal(tmp_path)
    health = journal.health()
    assert (health.fault, health.since, health.set_aside, caplog.messages) == (None, None, (), [])
    assert len(journal.claims()) == 12
    journal.close()


# While it is in use


def overwrite(path: Path, start: int = 0) -> None:
    """The file as a bad disk might leave it, its log emptied into it before."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * (path.stat().st_size - start))


@pytest.fixture
def in_use(tmp_path: Path) -> Iterator[Journal]:
    journal = open_journal(tmp_path)
    for number in range(50):
        journal.save(claim(number))
        if number % 5 == 0:
            journal.conclude(claim(number), letter(number, "x" * 3000))
    journal.save_fact("machine", "m")
    yield journal
    journal.close()


def stages(journal: Journal) -> dict[str, Stage]:
    return {one.key.uid: one.stage for one in journal.claims()}


def test_a_file_that_is_damaged_while_it_is_in_use_is_made_anew_from_memory(in_use: Journal) -> None:
    with closing(sqlite3.connect(in_use.path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    overwrite(in_use.path)
    before = stages(in_use)
    in_use.save(claim(99))
    assert stages(in_use) == {**before, "uid-99": Stage.RUNNING}
    in_use.prune(30)
    (aside,) = in_use.health().set_aside
    assert "is damaged" in aside.why
    in_use.close()
    again = open_journal(in_use.path.parent)
    lost_their_end = {f"uid-{number}" for number in range(0, 50, 5)}
    for uid, stage in stages(again).items():
        expected = Stage.CREATED if uid in lost_their_end else Stage.RUNNING
        assert stage is expected, "a conclusion that could not be saved is drawn anew"
    again.close()


@pytest.mark.parametrize("taken", [("",), ("-wal",), ("", "-wal", "-shm")])
def test_a_file_that_is_taken_away_while_it_is_in_use_is_made_anew(in_use: Journal, taken: tuple[str, ...]) -> None:
    """What went on being written to it was gone with the next restart."""
    in_use.prune(30)
    for end in taken:
        in_use.path.with_name(in_use.path.name + end).unlink()
    in_use.save(claim(98))
    in_use.prune(30)
    before = stages(in_use)
    in_use.close()
    again = open_journal(in_use.path.parent)
    assert stages(again) == before and "uid-98" in before
    assert (again.undelivered(), again.fact("machine")) == (10, "m")
    assert again.letter(Key("uid-5", 1)) == letter(5, "x" * 3000)
    again.close()


def test_a_disk_that_fails_is_told_of_until_it_works_again(
    in_use: Journal, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = in_use._store._connection.execute("PRAGMA page_count").fetchone()[0]
    in_use._store._connection.execute(f"PRAGMA max_page_count={pages}")  # SQLite's own "database or disk is full"
    big = dataclasses.replace(CLAIM, key=Key("big", 1), spec=TaskSpec(name="a", command=["x" * 20000]))
    for _ in range(3):
        with pytest.raises(OSError, match="free some space"):
            in_use.save(big)
    assert big.key.uid not in stages(in_use), "what is not on disk is not there"
    assert in_use.undelivered() == 10, "what only reads goes on"
    health = in_use.health()
    assert "full" in str(health.fault) and health.since is not None
    assert sum("cannot be written" in line for line in caplog.messages) == 1, "said once"
    in_use._store._connection.execute("PRAGMA max_page_count=1000000")
    in_use.prune(30)
    assert in_use.health().fault is None, "found out by itself"
    in_use.save(big)
