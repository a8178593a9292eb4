"""SQLAlchemy's engine for SQLite or PostgreSQL, each with what makes its commits durable and its waits short.

What statements carry is other people's text: it stays out of errors and logs.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from psycopg.types.string import StrDumperUnknown

BUSY_TIMEOUT_MS = 10_000
"""How long a statement waits for a lock of SQLite's."""
LINK = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
"""How soon a PostgreSQL host that vanished is given up, where the URL does not say: a packet that nobody answers is
otherwise waited for some fifteen minutes, by every thread. In seconds, tcp_user_timeout in milliseconds."""


def sqlite(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000}, hide_parameters=True)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    return engine


def postgresql(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(
        url,
        pool_size=20,
        max_overflow=20,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args={name: value for name, value in LINK.items() if name not in url.query},
    )
    sa.event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # SQLAlchemy, not the driver, begins transactions: see Database.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        # What a row held is overwritten when it goes: sealed secrets of ended tasks do not stay in free pages.
        "secure_delete=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


class _WithoutNul(StrDumperUnknown):
    """Text as PostgreSQL takes it. It refuses a NUL wherever it comes from: a node's boot id, a card's name."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\x00", "\ufffd"))


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    connection.adapters.register_dumper(str, _WithoutNul)
