"""Events: what happened, append-only. A row of the same transaction as the change it tells of."""

from __future__ import annotations

import sqlalchemy as sa

from runtime.protocol.nodes import Event, EventKind, EventReport
from runtime.protocol.times import now, to_wire
from runtime.server.store.database import Database
from runtime.server.store.tables import events
from runtime.server.store.transaction import Tx

LEAP = 1_000_000
"""More events than any time between a copy and its return holds."""
LIMIT = 1000
"""At most this many events in one answer."""
DETAIL_CHARS = 4000
"""A longer detail is cut: some of it are a node's own words, and events are kept for a month."""


def emit(
    tx: Tx,
    kind: EventKind,
    *,
    code: str | None = None,
    node_id: str | None = None,
    gpu_uuid: str | None = None,
    task_id: str | None = None,
    attempt: int | None = None,
    actor: str | None = None,
    detail: str | None = None,
) -> int:
    """Write one event in the transaction ``tx``; returns its id.

    ``code`` is stable within the kind; ``actor`` an operator's name, ``node:<id>`` or ``server``; ``detail`` a
    sentence without secrets.
    """
    written = tx.execute(
        sa.insert(events).values(
            time=to_wire(now()),
            kind=kind.value,
            code=code,
            node_id=node_id,
            gpu_uuid=gpu_uuid,
            task_id=task_id,
            attempt=attempt,
            actor=actor,
            detail=detail[:DETAIL_CHARS] if detail is not None else None,
        )
    )
    key = written.inserted_primary_key
    assert key is not None
    return int(key[0])


def record(db: Database, report: EventReport, actor: str) -> Event:
    """Keep what an operator's machine tells of a roll-out, as an event like any other; the event as it stands."""

    def change(tx: Tx) -> Event:
        made = emit(tx, EventKind.OPERATOR_ACTION, code=report.code.value, actor=actor, detail=report.detail)
        return _event(tx.execute(sa.select(events).where(events.c.id == made)).mappings().one())

    return db.write(change)


def leap(tx: Tx) -> None:
    """Give the newest event, and with it all that follow, ids that nobody has seen: whoever reads on ``after`` an id
    of the time that a database which was put back has lost would miss them all else."""
    newest = tx.execute(sa.select(sa.func.max(events.c.id))).scalar_one()
    tx.execute(sa.update(events).where(events.c.id == newest).values(id=newest + LEAP))
    if tx.connection.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence("events", "id"), newest + LEAP)))


def list_events(
    connection: sa.Connection,
    after: int = 0,
    node: str | None = None,
    task: str | None = None,
    kind: EventKind | None = None,
    limit: int = 100,
) -> list[Event]:
    """Events with an id above ``after``, oldest first."""
    query = sa.select(events).where(events.c.id > after).order_by(events.c.id).limit(min(limit, LIMIT))
    if node is not None:
        query = query.where(events.c.node_id == node)
    if task is not None:
        query = query.where(events.c.task_id == task)
    if kind is not None:
        query = query.where(events.c.kind == kind.value)
    return [_event(row) for row in connection.execute(query).mappings()]


def _event(row: sa.RowMapping) -> Event:
    return Event(**{**row, "kind": EventKind(row["kind"])})
