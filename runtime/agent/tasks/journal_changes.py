"""The journal's statements. Each works inside a transaction that somebody else began and ends."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from typing import Optional

from runtime.agent.tasks.journal_rows import claim_body, letter_body
from runtime.agent.tasks.records import ClaimRecord, Key, Letter

DROP_AT_ONCE = 50


def put_claim(change: sqlite3.Connection, claim: ClaimRecord) -> None:
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
            json.dumps(claim_body(claim)),
            time.time(),
        ),
    )


def delete_claim(change: sqlite3.Connection, key: Key) -> None:
    change.execute("DELETE FROM claims WHERE uid = ? AND attempt = ?", (key.uid, key.attempt))


def put_letter(change: sqlite3.Connection, letter: Letter) -> None:
    """A new conclusion, not delivered yet."""
    change.execute(
        "INSERT OR REPLACE INTO outbox (uid, attempt, body, created_at) VALUES (?, ?, ?, ?)",
        (letter.key.uid, letter.key.attempt, json.dumps(letter_body(letter)), time.time()),
    )


def mark_delivered(change: sqlite3.Connection, key: Key, outcome: str, revision: Optional[int]) -> None:
    """``revision``: what the control plane had come to when it was told, where known."""
    if revision is not None:
        change.execute("INSERT OR REPLACE INTO told VALUES (?, ?, ?)", (key.uid, key.attempt, revision))
    change.execute(
        "UPDATE outbox SET delivered_at = ?, outcome = ? WHERE uid = ? AND attempt = ?",
        (time.time(), outcome, key.uid, key.attempt),
    )


def put_fact(change: sqlite3.Connection, name: str, value: str) -> None:
    change.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value))


def keep_aside(change: sqlite3.Connection, table: str, key: tuple[str, int]) -> None:
    """Move one record of ``claims`` or ``outbox`` to where people can read it and no step is taken for it."""
    change.execute(
        f"INSERT INTO set_aside SELECT ?, uid, attempt, body, ? FROM {table} WHERE uid = ? AND attempt = ?",  # noqa: S608
        (table, time.time(), *key),
    )
    change.execute(f"DELETE FROM {table} WHERE uid = ? AND attempt = ?", key)  # noqa: S608


def keep_all_aside(change: sqlite3.Connection) -> list[Key]:
    """Every claim and every undelivered conclusion; instructions are dropped. The claims that were there."""
    claims = change.execute("SELECT uid, attempt FROM claims").fetchall()
    letters = change.execute("SELECT uid, attempt FROM outbox WHERE delivered_at IS NULL").fetchall()
    for table, keys in (("claims", claims), ("outbox", letters)):
        for key in keys:
            keep_aside(change, table, key)
    for table in ("outbox", "instructions"):
        change.execute(f"DELETE FROM {table}")  # noqa: S608
    return [Key(*key) for key in claims]


def drop_older(change: sqlite3.Connection, moment: float) -> None:
    """Delivered conclusions, instructions, and what was kept aside, from before ``moment``."""
    gone = change.execute("DELETE FROM outbox WHERE delivered_at IS NOT NULL AND delivered_at < ?", (moment,)).rowcount
    if gone:
        change.execute(
            "DELETE FROM told WHERE NOT EXISTS"
            " (SELECT 1 FROM outbox WHERE outbox.uid = told.uid AND outbox.attempt = told.attempt)"
        )
    change.execute("DELETE FROM instructions WHERE updated_at < ?", (moment,))
    change.execute("DELETE FROM set_aside WHERE at < ?", (moment,))


def drop_tails(change: sqlite3.Connection, more_than_bytes: int) -> None:
    """When the file holds more than that: the log tails of the oldest delivered conclusions, some at a time."""
    pages, free, size = (change.execute(f"PRAGMA {name}").fetchone()[0]
                         for name in ("page_count", "freelist_count", "page_size"))  # fmt: skip
    if (pages - free) * size <= more_than_bytes:
        return
    oldest = change.execute(
        "SELECT uid, attempt, body FROM outbox WHERE delivered_at IS NOT NULL AND length(body) > 2048"
        " ORDER BY delivered_at LIMIT ?",
        (DROP_AT_ONCE,),
    ).fetchall()
    for uid, attempt, text in oldest:
        body = {**json.loads(text), "log_tail": None}
        change.execute("UPDATE outbox SET body = ? WHERE uid = ? AND attempt = ?", (json.dumps(body), uid, attempt))


def make_whole(
    change: sqlite3.Connection, unreadable: Iterable[tuple[str, str, int]], claims: Iterable[ClaimRecord]
) -> None:
    """Keep the records aside that nobody can read, and write the claims that were put right."""
    for table, uid, attempt in unreadable:
        keep_aside(change, table, (uid, attempt))
    for claim in claims:
        put_claim(change, claim)
