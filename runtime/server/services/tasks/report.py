"""A node's word about its task: the compare-and-set behind ``PUT /api/v1/tasks/{id}``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runtime.protocol.names import is_task_id
from runtime.protocol.nodes import Cordon
from runtime.protocol.problems import Problem
from runtime.protocol.reasons import Reason
from runtime.protocol.states import TERMINAL, Desired, Status
from runtime.protocol.tasks import TaskUpdate
from runtime.protocol.times import from_wire, to_wire
from runtime.server.services.rollback import is_unsettled, refuse_claims
from runtime.server.services.tasks import claims, ends, late, rows, rules
from runtime.server.services.tasks.claims import Answer, Reporter
from runtime.server.services.tasks.rows import Row, plain
from runtime.server.services.tasks.view import Stored
from runtime.server.store.database import Database
from runtime.server.store.tables import attempts
from runtime.server.store.transaction import Tx

WARNINGS_MOST, WARNING_LENGTH = 8, 1000
"""So many of a report's warnings are kept, and so much of each: no result is refused for what is beside it."""


def report(
    db: Database,
    who: Reporter,
    task_id: str,
    update: TaskUpdate,
    now: datetime,
    *,
    forget: Callable[[str], None],
    cordoned: Callable[[str], None],
) -> Answer:
    """Carry out ``update``, or say what is instead. It is on disk when this returns.

    After the commit ``forget(uid)`` is called when the task's row is gone, ``cordoned(node_id)`` when
    this end was one too many for the node. Raises Problem task_not_found, illegal_transition.
    """
    reason = rules.judge(update)
    if not is_task_id(task_id):
        raise rows.not_found(task_id)

    def change(tx: Tx) -> Answer:
        row = rows.must_find_locked(tx, task_id)
        if not _matches(row, who, update):
            late.note_late_result(tx, row, who, update)
            return Answer(
                claims.stored(tx, row), conflict=True, mine=claims.owns(row, who, update.attempt, update.claim_token)
            )
        if update.from_status is Status.SCHEDULED:
            _claim(tx, row, who, update, now)
        elif update.status in (Status.SLEEPING, Status.RUNNING):
            _sleep_or_wake(tx, row, who, update)
        else:
            removed, cordon = _end(tx, row, who, update, reason, now)
            if cordon is not None:
                tx.after(lambda: cordoned(who.node_id))
            if removed is not None:
                tx.after(lambda: forget(row["uid"]))
                return Answer(removed, conflict=False, mine=True)
        return Answer(
            claims.stored(tx, rows.must_find_locked(tx, task_id)),
            conflict=False,
            mine=True,
            claimed=update.from_status is Status.SCHEDULED,
        )

    return db.write(change)


def _matches(row: Row, who: Reporter, update: TaskUpdate) -> bool:
    if row["status"] != update.from_status.value:
        return False
    if update.from_status is Status.SCHEDULED:
        return bool(row["node_id"] == who.node_id and row["attempt"] == update.attempt)
    return claims.owns(row, who, update.attempt, update.claim_token)


def _claim(tx: Tx, row: Row, who: Reporter, update: TaskUpdate, now: datetime) -> None:
    refuse_claims(tx)
    values = {
        "claim_token": update.claim_token,
        "claim_instance": who.instance_id,
        "started_at": to_wire(now),
        "starts": row["starts"] + 1,
    }
    _must(rows.move(tx, row, Status.RUNNING, values, actor=who.name))
    tx.execute(
        sa.update(attempts)
        .where(attempts.c.uid == row["uid"], attempts.c.attempt == row["attempt"])
        .values(claim_token=update.claim_token, instance_id=who.instance_id, claimed_at=to_wire(now))
    )


def _sleep_or_wake(tx: Tx, row: Row, who: Reporter, update: TaskUpdate) -> None:
    wakes = update.status is Status.RUNNING
    if wakes and row["spec"].get("gpus") and not rows.holds_cards(tx, row["uid"], row["attempt"]):
        raise Problem("cards_not_allocated", f"The cards of task {row['id']} are not allocated to it again yet.")
    values: dict[str, Any] = {"stalled": False}
    if Desired(row["desired"]) in (Desired.RUN, Desired.SLEEP) and is_unsettled(tx, who.node_id):
        # Told again: the wish that the node has followed is lost with the time in which it was made.
        values["desired"] = (Desired.RUN if wakes else Desired.SLEEP).value
    _must(rows.move(tx, row, update.status, values, actor=who.name, claim=_claim_of(row)))
    if not wakes:
        rows.free_cards(tx, row["uid"], row["attempt"])


def _end(
    tx: Tx, row: Row, who: Reporter, update: TaskUpdate, reason: Reason | None, now: datetime
) -> tuple[Stored | None, Cordon | None]:
    """End the attempt; the last sight of the task when it was to be deleted, and the cordon that came of it."""
    result = rules.outcome(update, reason, Desired(row["desired"]), row["starts"], row["max_attempts"])
    starts = row["starts"] - 1 if result.handed_back else row["starts"]
    facts = {
        "exit_code": update.exit_code,
        "error": plain(update.error),
        "node_finished_at": _moment(update.node_finished_at),
        "container_id": plain(update.container_id),
    }
    name = result.reason.value if result.reason is not None else None
    common: dict[str, Any] = {
        "actor": who.name, "reason": name, "starts": starts, "cards_gone": True, "claim": _claim_of(row), **facts
    }  # fmt: skip
    if result.status is Status.PENDING:
        _must(ends.back_to_pending(tx, row, now, **common))
    else:
        _must(ends.finish(tx, row, result.status, now, log_tail=plain(update.log_tail), **common))
    for warning in (update.warnings or ())[:WARNINGS_MOST]:
        code, detail = (str(plain(text))[:WARNING_LENGTH] for text in (warning.code, warning.detail))
        ends.add_warning(tx, rows.must_find_locked(tx, row["id"]), code, detail)
    if result.handed_back:
        ends.exclude(tx, row["uid"], who.node_id, now)
    cordon = None
    if result.bad and reason is not None:
        cordon = ends.note_bad_end(tx, who.node_id, now, reason, row["started_at"])
    elif result.ran:
        ends.note_good_end(tx, who.node_id)
    if row["desired"] == Desired.DELETE.value and result.status in TERMINAL:
        last = claims.stored(tx, rows.must_find_locked(tx, row["id"]))
        rows.remove(tx, row)
        return last, cordon
    return None, cordon


def _claim_of(row: Row) -> tuple[str, str]:
    return row["claim_token"], row["claim_instance"]


def _must(changed: bool) -> None:
    # The row was read with its lock in this transaction: nobody can have been faster.
    assert changed, "a locked task changed under its lock"


def _moment(text: str | None) -> str | None:
    """A node's time as we write times; one that is none is not worth losing a result over."""
    try:
        return to_wire(from_wire(text)) if text is not None else None
    except (ValueError, OverflowError):
        return None
