"""The agent's memory on disk: claims, the outbox of conclusions, instructions that were begun.

SQLite in WAL mode with ``synchronous=FULL``: when a call returns, its change is on the disk. Each is made before
the step that it protects. Secrets are not in it. A file that cannot be trusted is set aside
(:mod:`.journal_file`): containers carry labels that say the same.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sqlite3
import time
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar

from runtime.agent.tasks import journal_changes as changes
from runtime.agent.tasks.journal_file import FILE_NAME, JournalError
from runtime.agent.tasks.journal_health import JournalHealth, SetAside
from runtime.agent.tasks.journal_rows import claim_of, letter_of
from runtime.agent.tasks.journal_store import Store
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage, claim_for, unconcluded

__all__ = ["FILE_NAME", "Journal", "JournalError", "open_journal"]

log = logging.getLogger(__name__)

DAY_S = 86400.0
TAILS_MIB = 64
"""How large the journal may grow before the log tails of the oldest delivered conclusions are dropped. The
conclusions themselves are kept for as long as the setting says."""

_FACT_ASIDE = "set_aside"
_FACT_PROBE = "probe"
_CLAIM = "uid, attempt, task_id, control_plane_id, claim_token, stage, container_id, body"
_LETTER = "uid, attempt, body, delivered_at, outcome"
Parsed = TypeVar("Parsed")


class Journal:
    """One open journal; safe to use from several threads. Times are wall-clock seconds since the epoch.

    Every call raises JournalError when the disk does not let it; then nothing has changed. The claims are in memory
    as well: they outlive a file that is damaged while the agent runs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._claims: dict[Key, ClaimRecord] = {}
        self._not_ours: set[Key] = set()
        self._undelivered = 0
        self._noted: Optional[SetAside] = None
        self._store = Store(path, self._refill)
        self._take_up()

    def close(self) -> None:
        self._store.close()

    def settle(self) -> None:
        """Before the agent ends: all that is in the log goes into the file itself, where nothing is to be replayed."""
        self._store.read(lambda look: look.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())

    def health(self) -> JournalHealth:
        """How it stands with the file; from memory."""
        return self._store.health()

    @property
    def lost(self) -> bool:
        """Whether an earlier journal had to be set aside when this agent started, or since."""
        return self._store.lost is not None

    # Claims

    def save(self, claim: ClaimRecord) -> None:
        """Write a claim as it is now."""
        self._put(claim, lambda change: None)

    def claims(self) -> list[ClaimRecord]:
        """Every claim that is not forgotten; one that could not be read is left to what its container says."""
        with self._store.lock:
            return list(self._claims.values())

    def conclude(self, claim: ClaimRecord, letter: Letter) -> None:
        """The conclusion and the claim's stage, in one step."""
        done = dataclasses.replace(claim, stage=Stage.CONCLUDED)
        self._put(done, lambda change: changes.put_letter(change, letter))

    def delivered(self, claim: ClaimRecord, outcome: str, revision: Optional[int] = None) -> None:
        """The server has the conclusion (or has decided otherwise, as ``outcome`` says): into the archive.

        ``revision``: how far the control plane had come then; a database that is put back to before that has lost it.
        """
        done = dataclasses.replace(claim, stage=Stage.DONE)
        self._put(done, lambda change: changes.mark_delivered(change, claim.key, outcome, revision))

    def forget(self, key: Key) -> None:
        """The claim is over; its letter stays in the outbox."""
        with self._store.lock:
            self._store.write(lambda change: changes.delete_claim(change, key))
            self._claims.pop(key, None)

    def set_aside(self) -> int:
        """What is here is another instance's, of which this folder is a copy: it is kept for people to read, and no
        step is ever taken for it; how many claims."""

        with self._store.lock:
            keys = self._store.write(changes.keep_all_aside)
            self._not_ours.update(keys)
            self._claims.clear()
        return len(keys)

    # Outbox

    def letter(self, key: Key) -> Optional[Letter]:
        row = self._store.read(
            lambda look: look.execute(
                f"SELECT {_LETTER} FROM outbox WHERE uid = ? AND attempt = ?",  # noqa: S608
                (key.uid, key.attempt),
            ).fetchone()
        )
        return _read(letter_of, row, f"the conclusion of {key.uid}/{key.attempt}") if row else None

    def told_above(self, revision: int, limit: int) -> list[Letter]:
        """Conclusions that a control plane was told above this revision, or nobody knows when: newest first, at most
        ``limit``."""
        rows = self._store.read(
            lambda look: look.execute(
                "SELECT o.uid, o.attempt, o.body, o.delivered_at, o.outcome FROM outbox AS o"
                " LEFT JOIN told AS t ON t.uid = o.uid AND t.attempt = o.attempt"
                " WHERE o.delivered_at IS NOT NULL AND (t.revision IS NULL OR t.revision > ?)"
                " ORDER BY o.delivered_at DESC LIMIT ?",
                (revision, limit),
            ).fetchall()
        )
        found = [_read(letter_of, row, f"the conclusion of {row[0]}/{row[1]}") for row in rows]
        return [letter for letter in found if letter is not None]

    def undelivered(self) -> int:
        """How many conclusions the server does not have yet; the last known number while the file cannot be read."""
        try:
            row = self._store.read(
                lambda look: look.execute("SELECT count(*) FROM outbox WHERE delivered_at IS NULL").fetchone()
            )
        except JournalError:
            return self._undelivered
        self._undelivered = int(row[0])
        return self._undelivered

    def prune(self, keep_days: float) -> None:
        """Once in a while: drop what is older than that (delivered letters, ended instructions, records that could
        not be read), then the log tails of the oldest letters when all together are too large."""
        self._store.look_after(lambda change: changes.put_fact(change, _FACT_PROBE, str(time.time())))
        oldest = time.time() - keep_days * DAY_S

        def drop(change: sqlite3.Connection) -> None:
            changes.drop_older(change, oldest)
            changes.drop_tails(change, TAILS_MIB << 20)

        self._store.write(drop)
        if self._store.lost is not self._noted:
            self._note_aside()

    # Instructions

    def instruction(self, channel: str, request_id: str) -> Optional[dict[str, Any]]:
        row = self._store.read(
            lambda look: look.execute(
                "SELECT body FROM instructions WHERE channel = ? AND id = ?", (channel, request_id)
            ).fetchone()
        )
        return _read(_object, row, f"the {channel} instruction {request_id}") if row else None

    def save_instruction(self, channel: str, request_id: str, body: dict[str, Any]) -> None:
        row = (channel, request_id, json.dumps(body), time.time())
        self._store.write(
            lambda change: change.execute(
                "INSERT OR REPLACE INTO instructions (channel, id, body, updated_at) VALUES (?, ?, ?, ?)", row
            )
        )

    def instructions(self, channel: str) -> dict[str, dict[str, Any]]:
        rows = self._store.read(
            lambda look: look.execute("SELECT body, id FROM instructions WHERE channel = ?", (channel,)).fetchall()
        )
        found = {row[1]: _read(_object, row, f"the {channel} instruction {row[1]}") for row in rows}
        return {request_id: body for request_id, body in found.items() if body is not None}

    # Single facts

    def fact(self, name: str) -> Optional[str]:
        row = self._store.read(lambda look: look.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone())
        return str(row[0]) if row else None

    def save_fact(self, name: str, value: str) -> None:
        self._store.write(lambda change: changes.put_fact(change, name, value))

    # At the start, and after a file that was damaged

    def _take_up(self) -> None:
        """Read the claims. Rows that cannot be read are kept aside, and every claim and conclusion without the other
        is made whole: a conclusion is told in any case, and a claim that lost its own is looked at again."""
        rows = self._store.read(lambda look: look.execute(f"SELECT {_CLAIM} FROM claims").fetchall())  # noqa: S608
        open_letters = self._store.read(
            lambda look: look.execute(f"SELECT {_LETTER} FROM outbox WHERE delivered_at IS NULL").fetchall()  # noqa: S608
        )
        claims, unreadable = {}, []
        for row in rows:
            claim = _read(claim_of, row, f"the claim of task {row[2]}")
            if claim is None:
                unreadable.append(("claims", row[0], row[1]))
            else:
                claims[claim.key] = claim
        letters = {}
        for row in open_letters:
            letter = _read(letter_of, row, f"the conclusion of {row[0]}/{row[1]}")
            if letter is None:
                unreadable.append(("outbox", row[0], row[1]))
            else:
                letters[letter.key] = letter
        changed = [claim_for(letter) for key, letter in letters.items() if key not in claims]
        changed += [
            unconcluded(claim)
            for claim in claims.values()
            if claim.stage is Stage.CONCLUDED and claim.key not in letters
        ]
        if unreadable or changed:
            self._store.write(lambda change: changes.make_whole(change, unreadable, changed))
        self._claims = {**claims, **{claim.key: claim for claim in changed}}
        self._note_aside()

    def _refill(self, change: sqlite3.Connection) -> None:
        """Into a new file: the claims as memory has them. A conclusion that was not saved is drawn anew."""
        change.execute("DELETE FROM claims")
        for claim in self._claims.values():
            changes.put_claim(change, claim)

    def _note_aside(self) -> None:
        """Keep what is known of the files that were set aside, for as long as they are there."""
        stored = _read(_list, (self.fact(_FACT_ASIDE) or "[]",), "what was set aside") or []
        known = [SetAside(*entry) for entry in stored if isinstance(entry, list) and len(entry) == 3]
        self._noted = self._store.lost
        if self._noted is not None and self._noted not in known:
            known.append(self._noted)
        self._store.note(known)
        there = [dataclasses.astuple(aside) for aside in self._store.health().set_aside if aside.why]
        if [list(entry) for entry in there] != stored:
            self.save_fact(_FACT_ASIDE, json.dumps(there))

    def _put(self, claim: ClaimRecord, beside: Callable[[sqlite3.Connection], object]) -> None:
        """One claim as it is now, and what belongs to the same step."""

        def change(connection: sqlite3.Connection) -> None:
            changes.put_claim(connection, claim)
            beside(connection)

        with self._store.lock:
            if claim.key in self._not_ours:
                raise JournalError(f"the claim of task {claim.task_id} is another instance's")
            self._store.write(change)
            self._claims[claim.key] = claim


def open_journal(state_dir: Path) -> Journal:
    """The journal in ``state_dir``, made when missing. One that cannot be trusted is set aside with one log line.

    Raises JournalError when the folder cannot be written.
    """
    return Journal(Path(state_dir) / FILE_NAME)


def _read(parse: Callable[[tuple[Any, ...]], Parsed], row: tuple[Any, ...], what: str) -> Optional[Parsed]:
    """One record, None with a log line when it cannot be read: a bad one never hides the good ones."""
    try:
        return parse(row)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        log.error("%s in the journal cannot be read (%s: %s)", what, type(error).__name__, error)
        return None


def _object(row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(json.loads(row[0]))


def _list(row: tuple[Any, ...]) -> list[Any]:
    return list(json.loads(row[0]))
