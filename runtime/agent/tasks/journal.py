"""The agent's memory on disk: claims, the outbox of conclusions, instructions that were begun.

SQLite in WAL mode with ``synchronous=FULL``: when a call returns, its change is on the disk. Each is made before
the step that it protects. Secrets are not in it. A file that is torn or empty is set aside, never repaired by
guess: containers carry labels that say the same.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from runtime.agent.tasks.classify import Sent, Stop, StopReason
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage
from runtime.protocol.codec import decode, encode
from runtime.protocol.states import Driver, Status
from runtime.protocol.tasks import AssignedGpu, TaskSpec

log = logging.getLogger(__name__)

FILE_NAME = "journal.db"
FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS claims (
    uid TEXT NOT NULL, attempt INTEGER NOT NULL, task_id TEXT NOT NULL, control_plane_id TEXT NOT NULL,
    claim_token TEXT NOT NULL, stage TEXT NOT NULL, container_id TEXT, body TEXT NOT NULL, updated_at REAL NOT NULL,
    PRIMARY KEY (uid, attempt)
);
CREATE TABLE IF NOT EXISTS outbox (
    uid TEXT NOT NULL, attempt INTEGER NOT NULL, body TEXT NOT NULL, created_at REAL NOT NULL,
    delivered_at REAL, outcome TEXT, PRIMARY KEY (uid, attempt)
);
CREATE TABLE IF NOT EXISTS instructions (
    channel TEXT NOT NULL, id TEXT NOT NULL, body TEXT NOT NULL, updated_at REAL NOT NULL, PRIMARY KEY (channel, id)
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
DAY_S = 86400.0
Parsed = TypeVar("Parsed")


class JournalError(OSError):
    """The change is not on disk; what it protects must not be done."""


class Journal:
    """One open journal; safe to use from several threads. Times are wall-clock seconds since the epoch."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # Claims

    def save(self, claim: ClaimRecord) -> None:
        """Write a claim as it is now."""
        with self._change() as change:
            self._put_claim(change, claim)

    def claims(self) -> list[ClaimRecord]:
        """Every claim that is not forgotten and can be read; the others are left to what their containers say."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT uid, attempt, task_id, control_plane_id, claim_token, stage, container_id, body FROM claims"
            ).fetchall()
        found = [_read(_claim_of, row, f"the claim of task {row[2]}") for row in rows]
        return [claim for claim in found if claim is not None]

    def conclude(self, claim: ClaimRecord, letter: Letter) -> None:
        """The conclusion and the claim's stage, in one step."""
        with self._change() as change:
            self._put_claim(change, dataclasses.replace(claim, stage=Stage.CONCLUDED))
            change.execute(
                "INSERT OR REPLACE INTO outbox (uid, attempt, body, created_at) VALUES (?, ?, ?, ?)",
                (letter.key.uid, letter.key.attempt, json.dumps(_letter_body(letter)), time.time()),
            )

    def delivered(self, claim: ClaimRecord, outcome: str) -> None:
        """The server has the conclusion (or has decided otherwise, as ``outcome`` says)."""
        with self._change() as change:
            self._put_claim(change, dataclasses.replace(claim, stage=Stage.DONE))
            change.execute(
                "UPDATE outbox SET delivered_at = ?, outcome = ? WHERE uid = ? AND attempt = ?",
                (time.time(), outcome, claim.key.uid, claim.key.attempt),
            )

    def forget(self, key: Key) -> None:
        """The claim is over; its letter stays in the outbox."""
        with self._change() as change:
            change.execute("DELETE FROM claims WHERE uid = ? AND attempt = ?", (key.uid, key.attempt))

    # Outbox

    def letter(self, key: Key) -> Optional[Letter]:
        with self._lock:
            row = self._connection.execute(
                "SELECT uid, attempt, body, delivered_at, outcome FROM outbox WHERE uid = ? AND attempt = ?",
                (key.uid, key.attempt),
            ).fetchone()
        return _read(_letter_of, row, f"the conclusion of {key.uid}/{key.attempt}") if row else None

    def undelivered(self) -> int:
        """How many conclusions the server does not have yet."""
        with self._lock:
            row = self._connection.execute("SELECT count(*) FROM outbox WHERE delivered_at IS NULL").fetchone()
        return int(row[0])

    def prune(self, keep_days: float) -> None:
        """Drop delivered letters and ended instructions older than that."""
        oldest = time.time() - keep_days * DAY_S
        with self._change() as change:
            change.execute("DELETE FROM outbox WHERE delivered_at IS NOT NULL AND delivered_at < ?", (oldest,))
            change.execute("DELETE FROM instructions WHERE updated_at < ?", (oldest,))

    # Instructions

    def instruction(self, channel: str, request_id: str) -> Optional[dict[str, Any]]:
        with self._lock:
            row = self._connection.execute(
                "SELECT body FROM instructions WHERE channel = ? AND id = ?", (channel, request_id)
            ).fetchone()
        return dict(json.loads(row[0])) if row else None

    def save_instruction(self, channel: str, request_id: str, body: dict[str, Any]) -> None:
        with self._change() as change:
            change.execute(
                "INSERT OR REPLACE INTO instructions (channel, id, body, updated_at) VALUES (?, ?, ?, ?)",
                (channel, request_id, json.dumps(body), time.time()),
            )

    def instructions(self, channel: str) -> dict[str, dict[str, Any]]:
        with self._lock:
            rows = self._connection.execute(
                "SELECT id, body FROM instructions WHERE channel = ?", (channel,)
            ).fetchall()
        return {row[0]: dict(json.loads(row[1])) for row in rows}

    # Single facts

    def fact(self, name: str) -> Optional[str]:
        with self._lock:
            row = self._connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def save_fact(self, name: str, value: str) -> None:
        with self._change() as change:
            change.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value))

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                # A commit that found no room may leave its transaction open, and no other could begin.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise JournalError(_unwritable(self.path, error)) from None
                raise

    @staticmethod
    def _put_claim(change: sqlite3.Connection, claim: ClaimRecord) -> None:
        change.execute(
            "INSERT OR REPLACE INTO claims (uid, attempt, task_id, control_plane_id, claim_token, stage, container_id,"
            " body, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                claim.key.uid,
                claim.key.attempt,
                claim.task_id,
                claim.control_plane_id,
                claim.claim_token,
                claim.stage.value,
                claim.container_id,
                json.dumps(_claim_body(claim)),
                time.time(),
            ),
        )


def _read(parse: Callable[[tuple[Any, ...]], Parsed], row: tuple[Any, ...], what: str) -> Optional[Parsed]:
    """One record, None with a log line when it cannot be read: a bad one never hides the good ones."""
    try:
        return parse(row)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        log.error("%s in the journal cannot be read (%s: %s)", what, type(error).__name__, error)
        return None


def open_journal(state_dir: Path) -> Journal:
    """The journal in ``state_dir``, made when missing. One that cannot be read is set aside with one log line.

    Raises OSError when the folder cannot be written.
    """
    path = Path(state_dir) / FILE_NAME
    fault = _fault_of(path)
    if fault is not None:
        aside = path.with_name(f"{FILE_NAME}.broken-{int(time.time())}")
        for suffix in ("-wal", "-shm"):
            beside = path.with_name(path.name + suffix)
            if beside.exists():
                beside.rename(aside.with_name(aside.name + suffix))
        path.rename(aside)
        log.error("the journal %s %s; it was set aside as %s, and running tasks are taken over from their containers",
                  path, fault, aside.name)  # fmt: skip
    try:
        return Journal(_connect(path), path)
    except sqlite3.Error as error:
        raise JournalError(_unwritable(path, error)) from error


def _unwritable(path: Path, error: sqlite3.Error) -> str:
    advice = "free some space" if "full" in str(error) else "look at the free space, the file system and its mode"
    return f"the journal {path} cannot be written ({error}); {advice}"


def _fault_of(path: Path) -> Optional[str]:
    if not path.exists():
        return None
    if path.stat().st_size == 0:
        return "is empty"
    try:
        connection = _connect(path)
    except sqlite3.OperationalError:
        return None  # the disk is full or not writable, the file is locked: nothing is wrong with what is in it
    except sqlite3.DatabaseError as error:
        return f"cannot be read ({error})"
    try:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        return None if verdict == "ok" else f"is damaged ({verdict})"
    except sqlite3.OperationalError:
        return None
    except sqlite3.DatabaseError as error:
        return f"is damaged ({error})"
    finally:
        connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found == 0:
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version={FORMAT}")
        path.chmod(0o600)
    except BaseException:
        connection.close()
        raise
    return connection


def _claim_body(claim: ClaimRecord) -> dict[str, Any]:
    stop = claim.stop
    return {
        "spec": encode(dataclasses.replace(claim.spec, env=None, registry_auth=None), drop_none=True),
        "gpus": encode(list(claim.gpus), drop_none=True),
        "driver": claim.driver.value,
        "asked": [claim.asked_mark, claim.asked_mono],
        "started": [claim.started_mark, claim.started_mono, claim.started_wall],
        "ready": claim.ready,
        "stop": [stop.reason.value, stop.at, stop.sent.value] if stop else None,
        "start_error": claim.start_error,
        "pull": [claim.pull_attempts, claim.pull_spent_s],
        "mounts": [list(mount) for mount in claim.mounts],
    }


def _claim_of(row: tuple[Any, ...]) -> ClaimRecord:
    uid, attempt, task_id, control_plane_id, claim_token, stage, container_id, text = row
    body = json.loads(text)
    stop = body["stop"]
    asked_mark, asked_mono = body.get("asked") or (None, None)
    mark, mono, wall = body["started"]
    return ClaimRecord(
        key=Key(uid, attempt),
        task_id=task_id,
        control_plane_id=control_plane_id,
        claim_token=claim_token,
        stage=Stage(stage),
        spec=decode(TaskSpec, body["spec"]),
        gpus=tuple(decode(AssignedGpu, gpu) for gpu in body["gpus"]),
        driver=Driver(body["driver"]),
        container_id=container_id,
        asked_mark=asked_mark,
        asked_mono=asked_mono,
        started_mark=mark,
        started_mono=mono,
        started_wall=wall,
        ready=body["ready"],
        stop=Stop(StopReason(stop[0]), stop[1], Sent(stop[2])) if stop else None,
        start_error=body["start_error"],
        pull_attempts=body["pull"][0],
        pull_spent_s=body["pull"][1],
        mounts=tuple((mount[0], mount[1], mount[2]) for mount in body["mounts"]),
    )


_LETTER_FIELDS = ("task_id", "control_plane_id", "claim_token", "reason", "exit_code", "error", "log_tail",
                  "node_finished_at", "container_id")  # fmt: skip


def _letter_body(letter: Letter) -> dict[str, Any]:
    body = {name: getattr(letter, name) for name in _LETTER_FIELDS}
    return {**body, "from_status": letter.from_status.value, "status": letter.status.value}


def _letter_of(row: tuple[Any, ...]) -> Letter:
    body = json.loads(row[2])
    return Letter(
        key=Key(row[0], row[1]),
        from_status=Status(body.pop("from_status")),
        status=Status(body.pop("status")),
        delivered_at=row[3],
        outcome=row[4],
        **body,
    )
