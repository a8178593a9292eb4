"""Noticing that the database was put back: an agent has seen a revision that this database never reached.

Then nothing is placed and nothing is given up, until an operator says what is true.
"""

from __future__ import annotations

import logging
import threading

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.heartbeat import Heartbeat
from runtime.protocol.nodes import EventKind
from runtime.server.services.events import emit
from runtime.server.store import tables
from runtime.server.store.database import Database, Tx

log = logging.getLogger(__name__)


class Rollback:
    """``since`` is when it was noticed (RFC 3339), None in the ordinary state."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self.since: str | None = None

    @property
    def active(self) -> bool:
        return self.since is not None

    def load(self) -> None:
        """Take over what the database says."""
        with self._lock, self._db.read() as connection:
            self.since = connection.execute(sa.select(tables.control_plane.c.rolled_back_since)).scalar()

    def heard(self, beat: Heartbeat) -> None:
        """A node says which revision it has seen, and of which control plane: another's says nothing here."""
        seen_revision = beat.seen_revision
        if seen_revision is None or seen_revision <= self._db.revision or self.since is not None:
            return
        if beat.seen_control_plane_id not in (None, self._db.control_plane_id):
            return
        node_id = beat.node_id
        with self._lock:
            self._db.refresh_revision()  # another process may have committed it
            if seen_revision <= self._db.revision:
                return
            self.since = self._db.write(lambda tx: _enter(tx, node_id, seen_revision, self._db.revision))
            log.error(
                "the database was put back: node %s has seen revision %d, this database is at %d; nothing is placed "
                "and nothing is given up until an operator accepts it",
                node_id,
                seen_revision,
                self._db.revision,
            )


def _enter(tx: Tx, node_id: str, seen: int, own: int) -> str:
    plane = tables.control_plane
    since = tx.execute(sa.select(plane.c.rolled_back_since)).scalar()
    if since is not None:
        return str(since)
    moment = times.to_wire(times.now())
    tx.execute(sa.update(plane).values(rolled_back_since=moment))
    emit(
        tx,
        EventKind.DATABASE_ROLLED_BACK,
        code="entered",
        node_id=node_id,
        actor="server",
        detail=f"Node {node_id} has seen revision {seen}; this database is at {own}.",
    )
    return moment
