"""What a database that does not take a statement means for whoever asked: 503 with the reason, never a 500."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Iterator

from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError

from runtime.protocol.problems import Problem

log = logging.getLogger(__name__)

SAY_EVERY_S = 10.0
"""A database that is away is said this often, not with every request that it costs."""


def _say(what: str, error: DBAPIError) -> None:
    now = time.monotonic()
    # Not the text: it names the port of a connection, which differs each time.
    kind = f"{what} {type(error.orig).__name__} {getattr(error.orig, 'sqlite_errorname', '')}"
    if now - _said.get(kind, -SAY_EVERY_S) >= SAY_EVERY_S:
        _said[kind] = now
        log.error("%s: %s", what, error.orig)


_said: dict[str, float] = {}


@contextlib.contextmanager
def database_problems() -> Iterator[None]:
    """Turns what the drivers raise into Problem database_busy; a fault of ours goes on as it is."""
    try:
        yield
    except OperationalError as error:
        _say("the database did not take the statement", error)
        if getattr(error.orig, "sqlite_errorname", None) == "SQLITE_FULL":
            text = "The disk of the server's database is full, and nothing of this change is stored; free some space,"
        else:
            # PostgreSQL's driver names host and port, which are not for whoever asks: they are in the log.
            why = f"({error.orig})" if isinstance(error.orig, sqlite3.Error) else "(the server's log says why)"
            text = f"The database did not answer in time or cannot be written {why};"
        raise Problem("database_busy", f"{text} and try again.", retry_after=2) from error
    except DatabaseError as error:
        if getattr(error.orig, "sqlite_errorname", "").split("_")[1:2] not in (["CORRUPT"], ["NOTADB"]):
            raise
        _say("the database file is damaged", error)
        text = f"The database file is damaged ({error.orig}); stop the server and put a good copy back."
        raise Problem("database_busy", text, retry_after=10) from error
