"""What a crash between any two statements leaves, what a torn log leaves, and records that lost one another.

A crash is played by copying the journal's files just before each statement that SQLite is given: that is what a
SIGKILL leaves on disk.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.tasks import journal as journal_module
from runtime.agent.tasks.journal import FILE_NAME, Journal, open_journal
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage
from runtime.protocol.states import Status
from runtime.protocol.tasks import TaskSpec

KEY = Key("uid-1", 1)
CLAIM = ClaimRecord(KEY, "a", "cp", "token", Stage.CLAIMING, TaskSpec(name="a"))
LETTER = Letter(KEY, "a", "cp", "token", Status.RUNNING, Status.FAILED, "exited", 3, None, "tail")
WAY = [
    CLAIM,
    dataclasses.replace(CLAIM, stage=Stage.CLAIMED),
    dataclasses.replace(CLAIM, stage=Stage.CREATED, container_id="c" * 64),
    dataclasses.replace(CLAIM, stage=Stage.STARTING, container_id="c" * 64, asked_mark="boot", asked_mono=1.0),
    dataclasses.replace(CLAIM, stage=Stage.RUNNING, container_id="c" * 64, asked_mark="boot", started_mark="boot"),
]
ORDER = [*(record.stage for record in WAY), Stage.CONCLUDED, Stage.DONE]


def live(folder: Path) -> Iterator[Journal]:
    """A task's whole way, a step at a time."""
    journal = open_journal(folder)
    yield journal
    for record in WAY:
        journal.save(record)
        yield journal
    journal.conclude(WAY[-1], LETTER)
    yield journal
    journal.delivered(WAY[-1], "stored")
    yield journal
    journal.forget(KEY)
    yield journal


class Crashes:
    """A copy of the journal's files before each statement, for every connection that is opened."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self.copies: list[Path] = []
        self._folder, self._into = folder, copies

    def connect(self, path: Path, **options: Any) -> sqlite3.Connection:
        connection = sqlite3.Connection(path, **options)
        self.copy("connect")
        connection.set_trace_callback(self.copy)
        return connection

    def copy(self, statement: str) -> None:
        target = self._into / f"{len(self.copies):03d}"
        target.mkdir(parents=True)
        for path in self._folder.iterdir():
            shutil.copy(path, target / path.name)
        self.copies.append(target)


def test_a_crash_before_any_statement_leaves_one_step_or_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    crashes = Crashes(folder, tmp_path / "copies")
    with monkeypatch.context() as patched:
        patched.setattr("runtime.agent.tasks.journal_file.sqlite3.connect", crashes.connect)
        *_, journal = live(folder)
        crashes.copy("the end")
        journal.close()
    assert len(crashes.copies) > 40
    seen: list[Stage | None] = []
    with caplog.at_level(logging.WARNING):
        for copy in crashes.copies:
            after = open_journal(copy)
            stages = [claim.stage for claim in after.claims()]
            seen.append(stages[0] if stages else None)
            told = after.letter(KEY)
            assert after.undelivered() == (1 if seen[-1] is Stage.CONCLUDED else 0)
            if seen[-1] in (Stage.CONCLUDED, Stage.DONE):
                assert told is not None and (told.delivered_at is not None) == (seen[-1] is Stage.DONE)
            after.close()
    lost = [line for line in caplog.messages if "is empty" not in line]
    assert lost == [], "a file that was just made may be empty; every other one is a journal"
    steps = [stage for number, stage in enumerate(seen) if number == 0 or stage is not seen[number - 1]]
    assert steps == [None, *ORDER, None], "in order, none left out, nothing half done"


def test_a_crash_while_a_journal_is_set_aside_loses_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    *_, last = live(folder)
    last.close()
    (folder / FILE_NAME).write_bytes(b"torn" * 999)
    (folder / f"{FILE_NAME}-wal").write_bytes(b"log" * 999)
    crashes = Crashes(folder, tmp_path / "copies")
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        crashes.copy("rename")
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr("runtime.agent.tasks.journal_file.sqlite3.connect", crashes.connect)
        patched.setattr(Path, "rename", renamed)
        open_journal(folder).close()
    assert len(crashes.copies) > 10
    for copy in crashes.copies:
        after = open_journal(copy)
        after.save(CLAIM)
        after.close()
        kept = [path.read_bytes() for path in copy.iterdir() if ".broken-" in path.name]
        assert b"torn" * 999 in kept and b"log" * 999 in kept


def test_a_torn_log_leaves_an_earlier_step_whole(tmp_path: Path) -> None:
    """Whatever is cut from its end, what is left is what the journal once was."""
    folder = tmp_path / "state"
    folder.mkdir()
    copy = tmp_path / "copy"
    for number, _ in enumerate(live(folder)):
        if number == len(WAY) + 1:
            copy.mkdir()
            for path in folder.iterdir():
                shutil.copy(path, copy / path.name)
    wal = (copy / f"{FILE_NAME}-wal").read_bytes()
    found = []
    for length in range(0, len(wal) + 1, 1733):
        torn = tmp_path / f"torn-{length}"
        torn.mkdir()
        shutil.copy(copy / FILE_NAME, torn / FILE_NAME)
        (torn / f"{FILE_NAME}-wal").write_bytes(wal[:length])
        journal = open_journal(torn)
        claims = journal.claims()
        found.append(ORDER.index(claims[0].stage) if claims else -1)
        assert journal.undelivered() == (1 if claims and claims[0].stage is Stage.CONCLUDED else 0)
        journal.close()
    assert found == sorted(found) and set(found) >= {-1, 0, 1, 2, 3, 4}


# Records that lost one another


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """The folder of a journal with a conclusion that is not delivered."""
    for number, journal in enumerate(live(tmp_path)):
        if number == len(WAY) + 1:
            journal.close()
            break
    return tmp_path


def raw(folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.parametrize(
    "damage", ["DELETE FROM claims", "UPDATE claims SET body = '{'", "UPDATE claims SET stage = 'of a later release'"]
)
def test_a_conclusion_without_its_claim_is_told(told: Path, damage: str) -> None:
    """It stayed in the outbox as undelivered, nobody sent it, and the task ran for ever."""
    raw(told, damage)
    journal = open_journal(told)
    (claim,) = journal.claims()
    assert (claim.key, claim.stage, claim.claim_token) == (KEY, Stage.CONCLUDED, "token")
    assert journal.letter(KEY) == LETTER
    journal.close()
    again = open_journal(told)
    assert again.claims() == [claim]
    again.close()


@pytest.mark.parametrize("damage", ["DELETE FROM outbox", "UPDATE outbox SET body = '{'", "UPDATE outbox SET body = 5"])
@pytest.mark.parametrize(
    ("number", "stage"),
    [(1, Stage.CLAIMED), (2, Stage.CREATED), (3, Stage.STARTING), (4, Stage.STARTING)],
)
def test_a_claim_without_its_conclusion_is_looked_at_again(
    tmp_path: Path, damage: str, number: int, stage: Stage
) -> None:
    """It was called concluded, there was nothing to send, and it waited for ever."""
    journal = open_journal(tmp_path)
    journal.conclude(WAY[number], LETTER)
    journal.close()
    raw(tmp_path, damage)
    after = open_journal(tmp_path)
    (claim,) = after.claims()
    assert claim == dataclasses.replace(WAY[number], stage=stage)
    assert after.undelivered() == 0
    after.close()


def test_records_that_cannot_be_read_are_kept_for_a_while(told: Path) -> None:
    raw(told, "UPDATE claims SET body = 'nonsense'")
    raw(told, "UPDATE outbox SET body = 'nonsense, too'")
    journal = open_journal(told)
    assert journal.claims() == []
    assert aside(told) == [("claims", "nonsense"), ("outbox", "nonsense, too")]
    journal.prune(30)
    assert len(aside(told)) == 2
    journal.prune(-1)
    assert aside(told) == []
    journal.close()


def aside(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        return connection.execute("SELECT what, body FROM set_aside ORDER BY what").fetchall()


# How much of it there may be


def test_the_tails_of_the_oldest_conclusions_go_when_it_grows_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty days of log tails could fill the disk; the conclusions themselves stay."""
    monkeypatch.setattr(journal_module, "TAILS_MIB", 1)
    journal = open_journal(tmp_path)
    for number in range(40):
        key = Key(f"uid-{number}", 1)
        record = dataclasses.replace(WAY[-1], key=key)
        journal.conclude(record, dataclasses.replace(LETTER, key=key, log_tail="x" * 60_000))
        if number < 39:
            journal.delivered(record, "stored")
        journal.prune(30)
    letters = [journal.letter(Key(f"uid-{number}", 1)) for number in range(40)]
    assert all(letter is not None and letter.exit_code == 3 for letter in letters)
    assert letters[0] is not None and letters[0].log_tail is None
    assert letters[39] is not None and letters[39].log_tail is not None, "not delivered: it is kept whole"
    assert (tmp_path / FILE_NAME).stat().st_size < 6 << 20
    journal.close()


def test_what_is_asked_with_every_beat_reads_no_log_tails(tmp_path: Path) -> None:
    open_journal(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        for condition in ("IS NULL", "IS NOT NULL AND delivered_at < 5"):
            plan = connection.execute(
                f"EXPLAIN QUERY PLAN SELECT count(*) FROM outbox WHERE delivered_at {condition}"
            ).fetchall()
            assert "INDEX outbox_delivered" in plan[0][3], plan
