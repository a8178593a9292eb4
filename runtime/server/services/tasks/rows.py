"""Rows of tasks: how they are found, and the one way their status changes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from runtime.protocol.names import is_task_id
from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import Problem
from runtime.protocol.states import Desired, Status
from runtime.server.services.events import emit
from runtime.server.store.tables import attempts, exclusions, gpu_allocations, task_logs, tasks
from runtime.server.store.transaction import Tx

Row = sa.RowMapping

NOT_PLACED: dict[str, Any] = {
    "node_id": None,
    "claim_token": None,
    "claim_instance": None,
    "scheduled_at": None,
    "started_at": None,
    "container_id": None,
    "stalled": False,
    "node_lost_since": None,
}
"""Columns of a task that belongs to no node."""


RESTORED = "restored"
"""The code of the warning on a task whose row was made anew after the database was put back: what it kept secret is not
known any more, so it cannot run a second time."""


def plain(text: str | None) -> str | None:
    """``text`` as every database stores it: PostgreSQL takes no NUL."""
    return text.replace("\x00", "\ufffd") if text is not None else None


def not_found(task_id: str) -> Problem:
    return Problem("task_not_found", f"There is no task {task_id[:80]!r}; it was deleted or never created.")


def find(connection: sa.Connection, task_id: str) -> Row:
    """The row of a task, for reading. Raises Problem task_not_found."""
    row = None
    if is_task_id(task_id):
        row = connection.execute(sa.select(tasks).where(tasks.c.id == task_id)).mappings().first()
    if row is None:
        raise not_found(task_id)
    return row


def newest_given(connection: sa.Connection, row: Row) -> int:
    """The number of the newest attempt that a node was given; 0: none yet. What was taken from a node and waits has
    the next number already."""
    if row["status"] != Status.PENDING.value:
        return int(row["attempt"])
    given = sa.select(sa.func.max(attempts.c.attempt)).where(attempts.c.uid == row["uid"])
    return int(connection.execute(given).scalar() or 0)


def find_locked(tx: Tx, task_id: str) -> Row | None:
    """The row of a task, which nobody else changes before this transaction ends. None: there is none."""
    if not is_task_id(task_id):
        return None
    return tx.execute(sa.select(tasks).where(tasks.c.id == task_id).with_for_update()).mappings().first()


def must_find_locked(tx: Tx, task_id: str) -> Row:
    row = find_locked(tx, task_id)
    if row is None:
        raise not_found(task_id)
    return row


def on_node(tx: Tx, node_id: str, *statuses: Status) -> list[Row]:
    """The tasks of a node in these states, locked, in a fixed order."""
    query = (
        sa.select(tasks)
        .where(tasks.c.node_id == node_id, tasks.c.status.in_([status.value for status in statuses]))
        .order_by(tasks.c.uid)
        .with_for_update()
    )
    return list(tx.execute(query).mappings())


def move(
    tx: Tx,
    row: Row,
    status: Status,
    values: dict[str, Any] | None = None,
    *,
    actor: str,
    detail: str | None = None,
    reason: str | None = None,
    claim: tuple[str, str] | None = None,
) -> bool:
    """Change a task's status from what ``row`` says, and write the event; False when the row is no longer so.

    One UPDATE with the predicate uid, status, node and attempt, and with ``claim`` (token, instance) these too.
    ``reason`` goes into the event's detail.
    """
    predicate = [
        tasks.c.uid == row["uid"],
        tasks.c.status == row["status"],
        tasks.c.node_id.is_(None) if row["node_id"] is None else tasks.c.node_id == row["node_id"],
        tasks.c.attempt == row["attempt"],
    ]
    if claim is not None:
        predicate += [tasks.c.claim_token == claim[0], tasks.c.claim_instance == claim[1]]
    changed = tx.execute(sa.update(tasks).where(*predicate).values(status=status.value, **(values or {})))
    if changed.rowcount != 1:
        return False
    tx.touch_task(row["uid"])
    text = f"{row['status']} to {status.value}"
    emit(
        tx,
        EventKind.TASK_STATE,
        code=status.value,
        node_id=(values or {}).get("node_id") or row["node_id"],  # the one that it goes to, else the one that it leaves
        task_id=row["id"],
        attempt=(values or {}).get("attempt", row["attempt"]),
        actor=actor,
        detail=": ".join(part for part in (text, reason, detail) if part),
    )
    return True


def wish(tx: Tx, row: Row, desired: Desired) -> None:
    """Record what the operator wants of a task."""
    tx.execute(sa.update(tasks).where(tasks.c.uid == row["uid"]).values(desired=desired.value))
    tx.touch_task(row["uid"])


def holds_cards(tx: Tx, uid: str, attempt: int) -> bool:
    """Whether anything is allocated to this holder."""
    mine = sa.select(gpu_allocations.c.uid).where(gpu_allocations.c.uid == uid, gpu_allocations.c.attempt == attempt)
    return tx.execute(mine.limit(1)).first() is not None


def free_cards(tx: Tx, uid: str, attempt: int) -> None:
    """The node has said that this holder's container is gone or asleep, or it never had one."""
    tx.execute(sa.delete(gpu_allocations).where(gpu_allocations.c.uid == uid, gpu_allocations.c.attempt == attempt))


def keep_cards_until_gone(tx: Tx, uid: str, attempt: int) -> None:
    """The holder's container may still run somewhere: its cards are ``releasing``, which is not free."""
    tx.execute(
        sa.update(gpu_allocations)
        .where(gpu_allocations.c.uid == uid, gpu_allocations.c.attempt == attempt)
        .values(releasing=True)
    )


def remove(tx: Tx, row: Row) -> None:
    """Take a task and what belongs to it out of the database. Cards are the caller's to free or to keep."""
    uid = row["uid"]
    tx.wiped = True
    # The revision's last statement finds no row any more; touching it still makes the revision grow.
    tx.touch_task(uid)
    for table in (attempts, exclusions, task_logs):
        tx.execute(sa.delete(table).where(table.c.uid == uid))
    tx.execute(sa.delete(tasks).where(tasks.c.uid == uid))
