"""What operators do to tasks: stop, sleep, wake, reschedule, delete."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa

from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import Problem
from runtime.protocol.reasons import Reason
from runtime.protocol.states import TERMINAL, Desired, Driver, Status
from runtime.server.services.events import emit
from runtime.server.services.tasks import ends, rows, view
from runtime.server.services.tasks.rows import Row
from runtime.server.store.database import Database
from runtime.server.store.tables import nodes
from runtime.server.store.transaction import Tx

Action = Callable[[Tx, Row, str, datetime], None]

LEAVING = (Desired.STOP, Desired.DELETE)


def act(db: Database, action: str, task_id: str, actor: str, now: datetime) -> view.Stored:
    """Carry out one of :data:`ACTIONS`; the task as it is then.

    Raises Problem task_not_found, not_running, illegal_transition (409).
    """

    def change(tx: Tx) -> view.Stored:
        row = rows.must_find_locked(tx, task_id)
        ACTIONS[action](tx, row, actor, now)
        _tell(tx, row, action, actor)
        return view.read(tx.connection, [rows.must_find_locked(tx, task_id)])[0]

    return db.write(change)


def delete(
    db: Database, task_id: str, actor: str, now: datetime, *, force: bool, forget: Callable[[str], None]
) -> view.Stored | None:
    """Delete a task: None when it is gone now, else the task as seen last, which goes when its node has no container.

    That is at once where no node has claimed it: one that asks for it now is told that it is too late. ``force``
    drops the row at once; cards of a container that may still run stay ``releasing``.
    """

    def change(tx: Tx) -> view.Stored | None:
        row = rows.must_find_locked(tx, task_id)
        status = Status(row["status"])
        _tell(tx, row, "force_delete" if force else "delete", actor)
        if status in (Status.RUNNING, Status.SLEEPING) and not force:
            rows.wish(tx, row, Desired.DELETE)
            return view.read(tx.connection, [rows.must_find_locked(tx, task_id)])[0]
        last = None
        if status in (Status.PENDING, Status.SCHEDULED):
            _cancel(tx, row, actor, now)
            if status is Status.SCHEDULED and not force:
                rows.wish(tx, row, Desired.DELETE)
                last = view.read(tx.connection, [rows.must_find_locked(tx, task_id)])[0]
        elif status in (Status.RUNNING, Status.SLEEPING):
            # What sleeps holds none, unless it was about to wake: then its container may run already.
            rows.keep_cards_until_gone(tx, row["uid"], row["attempt"])
        rows.remove(tx, row)
        tx.after(lambda: forget(row["uid"]))
        return last

    return db.write(change)


def _stop(tx: Tx, row: Row, actor: str, now: datetime) -> None:
    status = Status(row["status"])
    if status in TERMINAL:
        raise _not_running(row, "stop")
    if status in (Status.PENDING, Status.SCHEDULED):
        _cancel(tx, row, actor, now)
    elif row["desired"] != Desired.DELETE.value:
        rows.wish(tx, row, Desired.STOP)


def _cancel(tx: Tx, row: Row, actor: str, now: datetime) -> None:
    # No claim is stored: a node that asks for it now is told that it is too late.
    reason = Reason.STOPPED_BY_OPERATOR.value
    ends.finish(tx, row, Status.CANCELLED, now, actor=actor, reason=reason, cards_gone=True)


def _sleep(tx: Tx, row: Row, _actor: str, _now: datetime) -> None:
    if row["driver"] != Driver.DOCKER.value:
        text = f"Task {row['id']} is a {row['driver']} task: it has no container that could be kept and started again."
        raise Problem("illegal_transition", text, status=422, from_status=row["status"])
    waking = row["status"] == Status.SLEEPING.value and row["desired"] == Desired.RUN.value
    if row["status"] != Status.RUNNING.value and not waking:
        raise _not_running(row, "sleep")
    _refuse_leaving(row, "put to sleep")
    if waking and rows.holds_cards(tx, row["uid"], row["attempt"]):
        text = f"Task {row['id']} has its cards again and is being started; put it to sleep when it runs."
        raise Problem("illegal_transition", text, status=409, from_status=row["status"])
    rows.wish(tx, row, Desired.SLEEP)


def _wake(tx: Tx, row: Row, _actor: str, _now: datetime) -> None:
    asleep = row["status"] == Status.SLEEPING.value
    falling_asleep = row["status"] == Status.RUNNING.value and row["desired"] == Desired.SLEEP.value
    if not asleep and not falling_asleep:
        raise _not_running(row, "wake")
    _refuse_leaving(row, "woken")
    if asleep and tx.execute(sa.select(nodes.c.draining).where(nodes.c.id == row["node_id"])).scalar():
        text = f"Task {row['id']} sleeps on {row['node_id']}, which is being drained; end the drain (uncordon) first."
        raise Problem("illegal_transition", text, status=409, from_status=row["status"])
    rows.wish(tx, row, Desired.RUN)


def _reschedule(tx: Tx, row: Row, actor: str, now: datetime) -> None:
    status = Status(row["status"])
    if status is Status.SLEEPING:
        raise Problem(
            "illegal_transition",
            f"Task {row['id']} is sleeping: what it holds is in its container on {row['node_id']}, so it never moves; "
            "wake it first, or stop it.",
            status=409,
            from_status=row["status"],
        )
    if status not in (Status.SCHEDULED, Status.RUNNING):
        raise _not_running(row, "reschedule")
    _refuse_leaving(row, "rescheduled")
    if any(warning["code"] == rows.RESTORED for warning in row["warnings"]):
        text = (
            f"Task {row['id']} was made anew after the database was put back: its env values and registry login are "
            "not known any more, so it cannot be started elsewhere; create it anew, and stop this one."
        )
        raise Problem("illegal_transition", text, status=409, from_status=row["status"])
    # What was not claimed has no container; a running one keeps its cards until its node says that it is gone.
    gone = status is Status.SCHEDULED
    ends.back_to_pending(tx, row, now, actor=actor, detail="rescheduled by the operator", cards_gone=gone)


ACTIONS: dict[str, Action] = {"stop": _stop, "sleep": _sleep, "wake": _wake, "reschedule": _reschedule}


def _refuse_leaving(row: Row, verb: str) -> None:
    if Desired(row["desired"]) in LEAVING:
        raise Problem(
            "illegal_transition",
            f"Task {row['id']} is being {'deleted' if row['desired'] == 'delete' else 'stopped'}; it cannot be {verb}.",
            status=409,
            from_status=row["status"],
        )


def _not_running(row: Row, action: str) -> Problem:
    wanted = {"wake": "sleeping", "sleep": "running", "stop": "not ended", "reschedule": "on a node"}[action]
    return Problem(
        "not_running", f"Task {row['id']} is {row['status']}; {action} wants a task that is {wanted}.",
        task_status=row["status"],
    )  # fmt: skip


def _tell(tx: Tx, row: Row, action: str, actor: str) -> None:
    emit(
        tx,
        EventKind.OPERATOR_ACTION,
        code=action,
        node_id=row["node_id"],
        task_id=row["id"],
        attempt=row["attempt"],
        actor=actor,
        detail=f"{action} while {row['status']}",
    )
