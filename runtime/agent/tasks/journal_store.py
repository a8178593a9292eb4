"""Transactions on the journal's file, and what happens when they fail while the agent runs.

A disk that is full, or an error of the moment: JournalError, the change is not there, and whoever needed it comes
again. A file that is damaged, or is not at its place any more: set aside, and a new one is written from what this
agent holds in memory and from all rows that can still be read.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path
from typing import Callable, Optional, TypeVar

from runtime.agent.tasks.journal_file import (
    JournalError,
    open_file,
    place,
    replace_file,
    set_aside_files,
    unwritable,
)
from runtime.agent.tasks.journal_health import JournalHealth, SetAside
from runtime.protocol.times import now, to_wire

log = logging.getLogger(__name__)

T = TypeVar("T")
_COPIED = ("outbox", "told", "instructions", "facts", "set_aside")


class Store:
    """One open file; safe to use from several threads. ``refill`` writes what memory holds into a new file."""

    def __init__(self, path: Path, refill: Callable[[sqlite3.Connection], None]) -> None:
        """Raises JournalError when the folder cannot be written."""
        self.path = path
        self.lock = threading.RLock()
        self._refill = refill
        self._connection, self.lost = open_file(path)
        self._place = place(path)
        self._fault: Optional[tuple[str, str]] = None
        self._aside: tuple[SetAside, ...] = ()

    def close(self) -> None:
        with self.lock:
            self._connection.close()

    def health(self) -> JournalHealth:
        fault, since = self._fault or (None, None)
        return JournalHealth(fault, since, self._aside)

    def note(self, known: list[SetAside]) -> None:
        """What is known of the journals that were set aside; files that nobody knows are told of as well."""
        by_name = {aside.file: aside for aside in known}
        names = set_aside_files(self.path)
        self._aside = tuple(by_name.get(name) or SetAside(name, "", "") for name in names)

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction; on disk when this returns. Raises JournalError, and then nothing of it is there."""

        def change(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            done = work(connection)
            connection.execute("COMMIT")
            return done

        done = self._do(change)
        self._works_again()
        return done

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Raises JournalError."""
        return self._do(work)

    def look_after(self, probe: Callable[[sqlite3.Connection], None]) -> None:
        """Once in a while: is the file still at its place, and does the disk work again? ``probe`` writes."""
        with self.lock:
            before, here = self._place, place(self.path)
            if here[0] != before[0] or (before[1] is not None and here[1] != before[1]):
                self._renew("was taken away while it was in use")
            else:
                self._place = here
        if self._fault is not None:
            self.write(probe)

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self.lock:
            try:
                return self._once(work)
            except sqlite3.OperationalError as error:
                self._ails(error)
                raise JournalError(unwritable(self.path, error)) from None
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:
                    raise  # a mistake of ours, not the file's fault
                self._renew(f"is damaged ({error})")
            try:
                return self._once(work)
            except sqlite3.DatabaseError as error:
                self._ails(error)
                raise JournalError(unwritable(self.path, error)) from None

    def _once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._connection)
        except BaseException:
            # A commit that found no room may leave its transaction open, and no other could begin.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _renew(self, why: str) -> None:
        """Raises JournalError when there is no room for a new one; then the old one is still in use."""
        old = self._connection
        try:
            self._connection, self.lost = replace_file(self.path, why)
        except JournalError as error:
            self._ails(error)
            raise
        self._place = place(self.path)

        def fill(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            for table in _COPIED:
                copy_readable(old, connection, table)
            self._refill(connection)
            connection.execute("COMMIT")

        try:
            self._once(fill)
        finally:
            old.close()

    def _ails(self, error: Exception) -> None:
        text = str(error)
        if self._fault is None:
            log.error("%s; what it protects waits until then", unwritable(self.path, error))
            self._fault = (text, to_wire(now()))
        elif self._fault[0] != text:
            self._fault = (text, self._fault[1])

    def _works_again(self) -> None:
        if self._fault is not None:
            log.info("the journal %s can be written again", self.path)
            self._fault = None


def copy_readable(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> int:
    """Copy the rows that can be read, from both ends up to where the damage is; how many."""
    copied = 0
    for order in ("ASC", "DESC"):
        try:
            for row in old.execute(f"SELECT * FROM {table} ORDER BY rowid {order}"):  # noqa: S608
                marks = ", ".join("?" * len(row))
                added = new.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)  # noqa: S608
                copied += added.rowcount
            return copied
        except sqlite3.DatabaseError as error:
            fault = error
    log.warning("what is left of %s in the damaged journal: %d record(s) (%s)", table, copied, fault)
    return copied
