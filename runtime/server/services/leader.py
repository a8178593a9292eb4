"""Which server process does the work that only one may do."""

from __future__ import annotations

import logging
import time

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from runtime.server.store.database import Database

log = logging.getLogger(__name__)

ADVISORY_LOCK = 0x48465F4C4541  # "HF_LEA"
RETRY_S = 2.0


class Leader:
    """With SQLite there is one process, and it leads. With PostgreSQL the one that holds an advisory lock does.

    The lock belongs to a connection of its own and goes when the connection does, so a process that dies or is
    cut off leads no more.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._connection: sa.Connection | None = None
        self._tried_at = -RETRY_S

    @property
    def leading(self) -> bool:
        """What :meth:`leads` said last; from any thread."""
        return self._db.is_sqlite or self._connection is not None

    def leads(self) -> bool:
        """Whether this process leads now. Called from one thread."""
        if self._db.is_sqlite:
            return True
        try:
            if self._connection is not None:
                self._connection.execute(sa.text("SELECT 1"))
                return True
            if time.monotonic() - self._tried_at < RETRY_S:
                return False
            self._tried_at = time.monotonic()
            connection = self._db.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            if connection.execute(sa.select(sa.func.pg_try_advisory_lock(ADVISORY_LOCK))).scalar():
                log.info("this process leads")
                self._connection = connection
                return True
            connection.close()
        except SQLAlchemyError as error:
            if self._connection is not None:
                log.warning("this process leads no more: %s", error)
            self.resign()
        return False

    def resign(self) -> None:
        """Let the lock go."""
        if self._connection is None:
            return
        connection, self._connection = self._connection, None
        try:
            # The pooled connection would keep the lock: it is ended, not given back.
            connection.invalidate()
            connection.close()
        except SQLAlchemyError:
            pass
