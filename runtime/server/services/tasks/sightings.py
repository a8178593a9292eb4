"""What was seen of tasks in heartbeats, as rows: events, start times, stall flags, freed cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from runtime.protocol.nodes import EventKind
from runtime.protocol.states import Status
from runtime.protocol.times import now, to_wire
from runtime.server.services.events import emit
from runtime.server.services.tasks.rows import plain
from runtime.server.store.database import Database
from runtime.server.store.tables import attempts, gpu_allocations, tasks
from runtime.server.store.transaction import Tx

Holder = tuple[str, int]
"""(uid, attempt)"""


@dataclass(frozen=True)
class Change:
    """Something to write. ``what``: phase, started, stalled, recovered or gone."""

    what: str
    node_id: str
    holder: Holder
    task_id: str | None = None
    phase: str | None = None
    detail: str | None = None


def releasing(db: Database) -> dict[str, frozenset[Holder]]:
    """Node id -> holders of cards that are free once the node has said that they are gone."""
    found: dict[str, set[Holder]] = defaultdict(set)
    query = sa.select(gpu_allocations.c.node_id, gpu_allocations.c.uid, gpu_allocations.c.attempt).where(
        gpu_allocations.c.releasing
    )
    with db.read() as connection:
        for row in connection.execute(query):
            found[row.node_id].add((row.uid, row.attempt))
    return {node_id: frozenset(holders) for node_id, holders in found.items()}


def stalled(db: Database) -> set[tuple[str, Holder]]:
    """(node id, holder) of every task that is flagged as stalled."""
    query = sa.select(tasks.c.node_id, tasks.c.uid, tasks.c.attempt).where(
        tasks.c.status == Status.RUNNING.value, tasks.c.stalled
    )
    with db.read() as connection:
        return {(row.node_id, (row.uid, row.attempt)) for row in connection.execute(query)}


def write(tx: Tx, batch: list[Change]) -> None:
    """Write what was seen, in order."""
    for change in batch:
        _APPLY[change.what](tx, change)


def _phase(tx: Tx, change: Change) -> None:
    uid, attempt = change.holder
    known = tx.execute(sa.select(tasks.c.id).where(tasks.c.uid == uid)).scalar()
    if known is None:
        return
    code = plain(change.phase) or ""
    emit(
        tx,
        EventKind.TASK_PHASE,
        code=code[:80],
        node_id=change.node_id,
        task_id=known,
        attempt=attempt,
        actor=f"node:{change.node_id}",
        detail=plain(change.detail),
    )


def _started(tx: Tx, change: Change) -> None:
    uid, attempt = change.holder
    tx.execute(
        sa.update(attempts)
        .where(
            attempts.c.uid == uid,
            attempts.c.attempt == attempt,
            attempts.c.node_id == change.node_id,
            attempts.c.started_at.is_(None),
        )
        .values(started_at=to_wire(now()))
    )


def _stall(tx: Tx, change: Change) -> None:
    """Set or clear the task's flag; told when that changed it."""
    flag, detail = _STALL[change.what]
    uid, attempt = change.holder
    changed = tx.execute(
        sa.update(tasks)
        .where(
            tasks.c.uid == uid,
            tasks.c.attempt == attempt,
            tasks.c.node_id == change.node_id,
            tasks.c.status == Status.RUNNING.value,
            tasks.c.stalled.is_not(flag),
        )
        .values(stalled=flag)
    )
    if changed.rowcount:
        tx.touch_task(uid)
        emit(
            tx,
            EventKind.TASK_STALLED,
            code=change.what,
            node_id=change.node_id,
            task_id=change.task_id,
            attempt=attempt,
            actor="server",
            detail=detail,
        )


_STALL = {
    "stalled": (True, "the node says that it runs, and does not list its container any more"),
    "recovered": (False, "the node lists its container again"),
}


def _gone(tx: Tx, change: Change) -> None:
    uid, attempt = change.holder
    freed = tx.execute(
        sa.delete(gpu_allocations).where(
            gpu_allocations.c.node_id == change.node_id,
            gpu_allocations.c.uid == uid,
            gpu_allocations.c.attempt == attempt,
            gpu_allocations.c.releasing,
        )
    )
    if freed.rowcount:
        # Cards became free: whoever waits for some is looked at again.
        tx.touch_task(uid)


_APPLY: dict[str, Callable[[Tx, Change], None]] = {
    "phase": _phase,
    "started": _started,
    "stalled": _stall,
    "recovered": _stall,
    "gone": _gone,
}
