"""What is old goes: events, and tasks and instructions that are over."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from runtime.protocol import times
from runtime.server.services.instructions import OVER
from runtime.server.services.tasks import lifecycle
from runtime.server.store.database import Database
from runtime.server.store.tables import events, instructions
from runtime.server.store.transaction import Tx

CHUNK = 500
"""Rows that go in one transaction: others want to write too."""


def prune(db: Database, now: datetime, days: float) -> int:
    """Remove what is older than ``days``; how many rows. 0 keeps everything."""
    if days <= 0:
        return 0
    before = times.to_wire(now - timedelta(days=days))
    total = 0
    for step in (_old_events, lifecycle.prune, _old_instructions):
        while True:
            gone = db.write(lambda tx, step=step: step(tx, before, CHUNK))  # type: ignore[misc]
            total += gone
            if gone < CHUNK:
                break
    return total


def _old_instructions(tx: Tx, before: str, limit: int) -> int:
    over = instructions.c.status.in_([status.value for status in OVER])
    query = sa.select(instructions.c.id).where(instructions.c.finished_at < before, over).limit(limit)
    ids = tx.execute(query).scalars().all()
    if ids:
        tx.execute(sa.delete(instructions).where(instructions.c.id.in_(ids)))
    return len(ids)


def _old_events(tx: Tx, before: str, limit: int) -> int:
    ids = tx.execute(sa.select(events.c.id).where(events.c.time < before).limit(limit)).scalars().all()
    if ids:
        tx.execute(sa.delete(events).where(events.c.id.in_(ids)))
    return len(ids)
