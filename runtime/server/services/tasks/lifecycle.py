"""What happens to tasks when something happens to their node or their card. Each call is part of a transaction."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.nodes import EventKind
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Desired, Status
from runtime.protocol.times import to_wire
from runtime.server.services.events import emit
from runtime.server.services.node_view import NodeView
from runtime.server.services.rollback import is_rolled_back
from runtime.server.services.tasks import ends, rows
from runtime.server.services.tasks.rows import Row
from runtime.server.services.tasks.rules import lost_outcome
from runtime.server.store.database import Database
from runtime.server.store.tables import gpu_allocations, nodes, tasks
from runtime.server.store.transaction import Tx

SERVER = "server"


def node_lost(tx: Tx, node_id: str, now: datetime, *, but_of: str | None = None) -> None:
    """The node is lost: its tasks wait, move or end as each was told to; what was not claimed goes back.

    ``but_of``: the claims of this instance are left alone.
    """
    holds = is_rolled_back(tx)  # then what this database says of the node's tasks is no ground to end or move them
    if not holds:
        ends.unclaimed_back(tx, node_id, now, "the node is lost")
    for row in rows.on_node(tx, node_id, Status.RUNNING, Status.SLEEPING):
        if but_of is not None and row["claim_instance"] == but_of:
            continue
        status = lost_outcome(
            Status(row["status"]),
            Desired(row["desired"]),
            row["spec"].get("on_node_lost", "wait"),
            row["starts"],
            row["max_attempts"],
        )
        status = None if holds else status
        reason = Reason.NODE_LOST.value
        if status is Status.PENDING:
            # The container may well go on running there: its cards are not free before the node has said so.
            ends.back_to_pending(tx, row, now, actor=SERVER, reason=reason, cards_gone=False)
        elif status is Status.FAILED:
            error = f"node {node_id} was not heard of any more"
            ends.finish(tx, row, Status.FAILED, now, actor=SERVER, reason=reason, cards_gone=False, error=error)
        elif row["node_lost_since"] is None:
            _set(tx, row, node_lost_since=to_wire(now))


def node_returned(tx: Tx, node_id: str) -> None:
    """The node is back: tasks that waited for it go on as if nothing had been.

    Those that another instance had claimed still wait: who holds the name now knows nothing of them.
    """
    holder = tx.execute(sa.select(nodes.c.instance_id).where(nodes.c.id == node_id)).scalar()
    for row in rows.on_node(tx, node_id, Status.RUNNING, Status.SLEEPING):
        if row["node_lost_since"] is not None and row["claim_instance"] in (None, holder):
            _set(tx, row, node_lost_since=None)


def holder_changed(tx: Tx, node_id: str, instance_id: str, now: datetime) -> None:
    """Another instance holds the name: to the claims of the former one it is as if the node were lost."""
    node_lost(tx, node_id, now, but_of=instance_id)
    node_returned(tx, node_id)


def node_left(tx: Tx, node_id: str) -> None:
    """The node is cordoned or went offline: what it had not claimed goes elsewhere, what runs there stays."""
    if is_rolled_back(tx):
        return  # it may have claimed it in the time that this database has lost
    ends.unclaimed_back(tx, node_id, times.now(), "the node takes no new work")


def card_lost(tx: Tx, node_id: str, gpu_uuid: str, why: str) -> None:
    """A card is lost: what had not started on it goes elsewhere, what runs on it is left alone with a warning."""
    now = times.now()
    holders = sa.select(gpu_allocations.c.uid).where(
        gpu_allocations.c.node_id == node_id,
        (gpu_allocations.c.gpu_uuid == gpu_uuid) | (gpu_allocations.c.parent_uuid == gpu_uuid),
    )
    uids = set(tx.execute(holders).scalars())
    for row in rows.on_node(tx, node_id, Status.SCHEDULED, Status.RUNNING):
        if row["uid"] not in uids:
            continue
        if row["status"] == Status.SCHEDULED.value:
            detail = f"card {gpu_uuid} was lost before the start"
            ends.back_to_pending(tx, row, now, actor=SERVER, detail=detail, cards_gone=True)
        else:
            # The warning stays, the card may come back: ``why`` tells how it is now.
            detail = f"card {gpu_uuid} of node {node_id} was lost at {to_wire(now)}: {why}"
            ends.add_warning(tx, row, "card_lost", detail, about=f"card {gpu_uuid} ")


def sweep_overdue_claims(
    db: Database, now: datetime, views: Iterable[NodeView], overdue_s: float, since: datetime | None = None
) -> int:
    """Take scheduled tasks that nobody claimed in time back; how many.

    Counted from ``since`` at the earliest, the server's own start: while it was away nobody could claim. The
    node is left out for that task for as long again, so that another one gets its chance. One that was not
    heard since the task was given to it had no chance itself: its own state decides about its tasks.
    """
    limit = to_wire(now - timedelta(seconds=overdue_s))
    overdue = sa.select(tasks.c.id).where(tasks.c.status == Status.SCHEDULED.value, tasks.c.scheduled_at <= limit)
    if since is not None and to_wire(since) > limit:
        return 0
    with db.read() as connection:
        found = connection.execute(overdue).scalars().all()
    if not found:
        return 0
    heard = {view.node_id: view.last_seen_at for view in views}

    def change(tx: Tx) -> int:
        return sum(_overdue_back(tx, task_id, limit, heard, now, overdue_s) for task_id in found)

    return db.write(change)


def _overdue_back(
    tx: Tx, task_id: str, limit: str, heard: dict[str, datetime | None], now: datetime, overdue_s: float
) -> bool:
    row = rows.find_locked(tx, task_id)
    if row is None or row["status"] != Status.SCHEDULED.value or row["scheduled_at"] > limit:
        return False
    node_id = row["node_id"]
    last = heard.get(node_id)
    if node_id in heard and (last is None or to_wire(last) < row["scheduled_at"]):
        return False
    detail = f"not claimed within {overdue_s:g} s"
    if not ends.back_to_pending(tx, row, now, actor=SERVER, detail=detail, cards_gone=True):
        return False
    ends.exclude(tx, row["uid"], node_id, now, overdue_s)
    emit(
        tx,
        EventKind.CLAIM_OVERDUE,
        code="not_claimed",
        node_id=node_id,
        task_id=row["id"],
        attempt=row["attempt"],
        actor=SERVER,
        detail=f"node {node_id} did not claim the task within {overdue_s:g} s",
    )
    return True


def prune(tx: Tx, before: str, limit: int = 500) -> int:
    """Remove tasks that ended before that time (RFC 3339), at most ``limit``; how many."""
    query = sa.select(tasks).where(tasks.c.finished_at < before).limit(limit).with_for_update()
    found = list(tx.execute(query).mappings())
    for row in found:
        rows.remove(tx, row)
    return len(found)


def _set(tx: Tx, row: Row, **values: object) -> None:
    tx.execute(sa.update(tasks).where(tasks.c.uid == row["uid"]).values(**values))
    tx.touch_task(row["uid"])
