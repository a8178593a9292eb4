"""Drains: at the deadline what still runs is left, stopped or moved, as the operator said; a drain is done when
the node itself has said that nothing runs. The node stays cordoned."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.nodes import Cordon, EventKind
from runtime.protocol.problems import Problem
from runtime.protocol.states import Phase, Status
from runtime.server.services.board import Board
from runtime.server.services.events import emit
from runtime.server.services.presence import Presence
from runtime.server.services.tasks import operate
from runtime.server.store.database import Database
from runtime.server.store.tables import nodes, tasks
from runtime.server.store.transaction import Tx


@dataclass(frozen=True)
class Drain:
    """A drain under way. ``empty``: the node's newest beat, later than the drain, says that nothing runs."""

    node_id: str
    cordon: Cordon
    deadline: str | None
    then: str
    empty: bool


def finish(db: Database, presence: Presence, board: Board, now: datetime) -> None:
    """Carry out the drains that are due, and end those that are done. Costs no statement when none is."""
    moment = times.to_wire(now)
    for node_id in presence.node_ids():
        drain = _drain(presence, node_id)
        if drain is None:
            continue
        left = board.intents(node_id)
        if drain.empty and all(intent.status == Status.SLEEPING.value for intent in left):
            _end(db, presence, drain, len(left))
        elif drain.deadline is not None and drain.deadline <= moment:
            if drain.then != "leave":
                for task_id in _running(db, node_id):
                    with contextlib.suppress(Problem):  # it has ended by itself meanwhile, or is being stopped already
                        operate.act(db, drain.then, task_id, drain.cordon.owner, now)
            _pass_deadline(db, presence, drain)


def _drain(presence: Presence, node_id: str) -> Drain | None:
    with presence.locked(node_id):
        held = presence.held(node_id)
        if held is None or not held.draining or held.cordon is None:
            return None
        beat = held.beat
        # What sleeps there stays: nothing of it runs, and it never moves.
        entries = beat.task_health if beat is not None else None
        asleep = entries is not None and all(entry.phase == Phase.SLEEPING.value for entry in entries)
        said = beat is not None and beat.live_task_ids == [] and asleep
        since = times.from_wire(held.cordon.since).timestamp()
        heard_after = held.seen_wall is not None and held.seen_wall > since
        return Drain(node_id, held.cordon, held.drain_deadline, held.drain_then or "leave", said and heard_after)


def _running(db: Database, node_id: str) -> list[str]:
    with db.read() as connection:
        return list(
            connection.execute(
                sa.select(tasks.c.id).where(tasks.c.node_id == node_id, tasks.c.status == Status.RUNNING.value)
            ).scalars()
        )


def _pass_deadline(db: Database, presence: Presence, drain: Drain) -> None:
    text = f"The drain's deadline has come; running tasks: {drain.then}."
    if _change(db, drain, {"drain_deadline": None}, "drain_deadline", text):
        presence.reread_cordon(drain.node_id)


def _end(db: Database, presence: Presence, drain: Drain, sleepers: int) -> None:
    values = {"draining": False, "drain_deadline": None, "drain_then": None}
    asleep = f"; {sleepers} task(s) sleep there" if sleepers else ""
    if _change(db, drain, values, "drained", f"The node says that nothing runs{asleep}; it stays cordoned."):
        presence.reread_cordon(drain.node_id)


def _change(db: Database, drain: Drain, values: dict[str, Any], code: str, text: str) -> bool:
    """Whether the drain was still the same: an operator may have ended it, or begun another, meanwhile."""

    def change(tx: Tx) -> bool:
        same = (nodes.c.id == drain.node_id, nodes.c.draining, nodes.c.cordon_since == drain.cordon.since)
        if tx.execute(sa.update(nodes).where(*same).values(values)).rowcount == 0:
            return False
        emit(tx, EventKind.NODE_CORDONED, code=code, node_id=drain.node_id, actor="server", detail=text)
        return True

    return db.write(change)
