"""Drains whose deadline has come: what still runs is left, stopped or moved, as the operator said."""

from __future__ import annotations

import contextlib
from datetime import datetime

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import Problem
from runtime.protocol.states import Status
from runtime.server.services.events import emit
from runtime.server.services.presence import Presence
from runtime.server.services.tasks import operate
from runtime.server.store.database import Database, Tx
from runtime.server.store.tables import nodes, tasks


def finish(db: Database, presence: Presence, now: datetime) -> None:
    """Carry out the drains that are due. Costs no statement when none is."""
    moment = times.to_wire(now)
    for node_id in presence.node_ids():
        held = presence.held(node_id)
        if held is None or not held.draining or held.drain_deadline is None or held.drain_deadline > moment:
            continue
        then, cordon = held.drain_then or "leave", held.cordon
        owner = cordon.owner if cordon is not None else "server"
        if then != "leave":
            for task_id in _running(db, node_id):
                with contextlib.suppress(Problem):  # it has ended by itself meanwhile, or is being stopped already
                    operate.act(db, then, task_id, owner, now)
        db.write(lambda tx, node_id=node_id, then=then: _over(tx, node_id, then))  # type: ignore[misc]
        presence.set_cordon(node_id, cordon, draining=True)


def _running(db: Database, node_id: str) -> list[str]:
    with db.read() as connection:
        return list(
            connection.execute(
                sa.select(tasks.c.id).where(tasks.c.node_id == node_id, tasks.c.status == Status.RUNNING.value)
            ).scalars()
        )


def _over(tx: Tx, node_id: str, then: str) -> None:
    tx.execute(sa.update(nodes).where(nodes.c.id == node_id).values(drain_deadline=None))
    emit(
        tx,
        EventKind.NODE_CORDONED,
        code="drain_deadline",
        node_id=node_id,
        actor="server",
        detail=f"The drain's deadline has come; running tasks: {then}.",
    )
