"""The database: engine, durable write transactions with a group commit, the revision.

``Database.write(change)`` runs ``change(tx)`` in a write transaction and returns its result only when the
commit is on disk. On SQLite one writer thread takes all waiting changes into one ``BEGIN IMMEDIATE``
transaction, each in a savepoint of its own, so many changes share one fsync and one bad change hurts nobody
else. PostgreSQL groups commits itself; there each change is a transaction of the calling thread.

``Database.read()`` gives a connection for reading. No remote call ever happens inside either.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from runtime.protocol.problems import Problem
from runtime.server.store import engines, tables
from runtime.server.store.refusals import database_problems
from runtime.server.store.sqlite_file import SqliteFile
from runtime.server.store.transaction import Tx

T = TypeVar("T")

BATCH = 200
"""At most this many changes share one commit."""
RETRIES = 5
"""How often PostgreSQL's serialization failures and deadlocks are tried again."""


@dataclass
class _Job(Generic[T]):
    change: Callable[[Tx], T]
    done: Future[tuple[T, Tx]] = field(default_factory=Future)


class Database:
    """``url`` is SQLAlchemy's. Call :meth:`start` after the migrations and :meth:`close` at the end."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        on_disk = self.is_sqlite and self.url.database not in (None, "", ":memory:")
        self._file = SqliteFile(str(self.url.database)) if on_disk else None
        if self.is_sqlite:
            self.engine = engines.sqlite(self.url)
            sa.event.listen(self.engine, "do_connect", lambda *_: self._check_file())
            sa.event.listen(self.engine, "begin", self._begin_sqlite)
        else:
            self.engine = engines.postgresql(self.url)
        self.control_plane_id = ""
        self._revision = 0
        self.started_revision = 0
        """What the database held when this process opened it."""
        self._revision_lock = threading.Lock()
        self._listeners: list[Callable[[int], None]] = []
        self._wiped = False
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._jobs_lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._open = False

    # -- life ------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Be the one server process of an SQLite file until :meth:`close`: what such a process knows is in its
        memory, and two would judge each other's nodes. Raises StoreError (69, 73)."""
        if self._file is not None:
            self._file.hold()

    def start(self) -> None:
        """Read who this database is, and start the writer where one is needed."""
        if self._file is not None:
            self._file.remember()
        with self.read() as connection:
            row = connection.execute(sa.select(tables.control_plane)).one()
        self.control_plane_id = row.id
        self.started_revision = row.revision
        self.note_revision(row.revision)
        self._open = True
        if self.is_sqlite:
            self._writer = threading.Thread(target=self._write_loop, name="database-writer", daemon=True)
            self._writer.start()

    def close(self) -> None:
        """Finish what was asked for, then let go of all connections."""
        with self._jobs_lock:
            # Whoever asks from here on is refused: a job behind the end mark would wait for ever.
            self._open = False
        if self._writer is not None:
            self._jobs.put(None)
            self._writer.join(engines.BUSY_TIMEOUT_MS / 1000)
            self._writer = None
        self.engine.dispose()
        if self._file is not None:
            self._file.release()

    # -- revision --------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """The newest revision known to this process."""
        return self._revision

    def note_revision(self, revision: int) -> None:
        """A commit, here or in another process, has reached ``revision``."""
        with self._revision_lock:
            if revision <= self._revision:
                return
            self._revision = revision
        for listener in self._listeners:
            listener(revision)

    def refresh_revision(self) -> bool:
        """Look up what other processes have committed. False: the database holds less than this process has seen of
        it, so another one was put in its place."""
        before = self._revision
        with self.read() as connection:
            found = connection.execute(sa.select(tables.control_plane.c.revision)).scalar_one()
        self.note_revision(found)
        return bool(found >= before)

    def begin_anew(self) -> None:
        """Take the database for what it is now: it was put back under this process."""
        with self.read() as connection:
            row = connection.execute(sa.select(tables.control_plane)).one()
        with self._revision_lock:
            self.control_plane_id = row.id
            self.started_revision = self._revision = row.revision

    def forget_wiped(self) -> bool:
        """Let go of the copies of secrets that were wiped since the last time: SQLite's write-ahead log keeps
        older pages until it is written back and cut. False while others read or write: ask again.

        PostgreSQL does the like in its own time (autovacuum, recycled WAL).
        """
        if not self.is_sqlite or not self._wiped:
            return True
        self._wiped = False
        done = self._cut_log()
        if not done:
            self._wiped = True
        return done

    def _cut_log(self) -> bool:
        with contextlib.closing(self.engine.raw_connection()) as raw:
            cursor = raw.cursor()
            try:
                cursor.execute("PRAGMA busy_timeout=0")  # nobody waits for this
                busy, _, _ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError:
                return False
            finally:
                cursor.execute(f"PRAGMA busy_timeout={engines.BUSY_TIMEOUT_MS}")
                cursor.close()
        return not busy

    def on_revision(self, listener: Callable[[int], None]) -> None:
        """``listener(revision)`` is called after every commit that changed tasks or instructions.

        It runs in the committing thread and must only wake somebody else.
        """
        self._listeners.append(listener)

    # -- reading and writing ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection for reading (a consistent snapshot on SQLite)."""
        with database_problems(), self.engine.connect() as connection:
            yield connection

    def write(self, change: Callable[[Tx], T]) -> T:
        """Run ``change`` in a write transaction; returns when it is on disk.

        What ``change`` raises is raised here and nothing of it is kept. It may be run again after a conflict
        on PostgreSQL, so it must do nothing but talk to ``tx``. Raises Problem database_busy when the
        database does not take it in time, and Problem starting when it is not open (yet, or any more).
        """
        with database_problems():
            if self.is_sqlite:
                job = _Job(change)
                with self._jobs_lock:
                    self._refuse_when_closed()
                    self._jobs.put(job)
                result, tx = job.done.result()
            else:
                self._refuse_when_closed()
                result, tx = self._write_directly(change)
        if tx.wiped:
            self._wiped = True
        if tx.revision is not None:
            self.note_revision(tx.revision)
        tx.committed()
        return result

    def _refuse_when_closed(self) -> None:
        if not self._open:
            raise Problem("starting", "The database is not open: the server is starting or stopping.", retry_after=2)

    def _write_directly(self, change: Callable[[Tx], T]) -> tuple[T, Tx]:
        for attempt in range(RETRIES):
            try:
                with self.engine.begin() as connection:
                    tx = Tx(connection)
                    result = change(tx)
                    tx.seal()
                return result, tx
            except DBAPIError as error:
                if attempt == RETRIES - 1 or getattr(error.orig, "sqlstate", None) not in ("40001", "40P01"):
                    raise
        raise AssertionError("unreachable")

    def _write_loop(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            batch = [job]
            last = False
            while len(batch) < BATCH:
                try:
                    more = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                batch.append(more)
            self._write_batch(batch)
            if last:
                return

    def _write_batch(self, batch: list[_Job[Any]]) -> None:
        outcomes: list[tuple[_Job[Any], Any, Tx]] = []
        refused: list[tuple[_Job[Any], BaseException]] = []
        try:
            with self.engine.connect() as connection:
                connection = connection.execution_options(heterofleet_write=True)
                with connection.begin():
                    for job in batch:
                        tx = Tx(connection)
                        try:
                            with connection.begin_nested():
                                result = job.change(tx)
                                tx.seal()
                        except OperationalError:
                            raise
                        except Exception as error:
                            refused.append((job, error))
                        else:
                            outcomes.append((job, result, tx))
            self._check_file()  # a commit to a file that has no name any more is no commit
        except Exception as error:
            # Nothing of the batch is on disk: everyone in it is told so.
            for job in batch:
                job.done.set_exception(error)
            return
        for job, refusal in refused:
            job.done.set_exception(refusal)
        for job, result, tx in outcomes:
            job.done.set_result((result, tx))

    def _begin_sqlite(self, connection: sa.Connection) -> None:
        self._check_file()
        # A read that turns into a write fails at once however long the busy timeout: writers say so at the start.
        writes = connection.get_execution_options().get("heterofleet_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    def _check_file(self) -> None:
        if self._file is not None:
            self._file.check()
