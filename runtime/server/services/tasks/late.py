"""Results that come too late: they change nothing, and are told."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from runtime.protocol.nodes import EventKind
from runtime.protocol.states import TERMINAL, Status
from runtime.protocol.tasks import TaskUpdate
from runtime.server.services.events import emit
from runtime.server.services.tasks import rows
from runtime.server.services.tasks.claims import Reporter, attempt_of
from runtime.server.services.tasks.rows import Row, plain
from runtime.server.store.tables import events
from runtime.server.store.transaction import Tx


def note_late_result(tx: Tx, row: Row, who: Reporter, update: TaskUpdate) -> None:
    """A result that comes after the task's end, or for an earlier attempt, changes nothing but is told.

    The repetition of the report that made the end is no news. What an earlier attempt on this node held is
    free now: the node says itself that its container ended.
    """
    if update.status not in TERMINAL or update.attempt > row["attempt"]:
        return
    attempt = attempt_of(tx, row["uid"], update.attempt, who, update.claim_token)
    if attempt is None:
        return
    over = update.attempt < row["attempt"] or attempt.ended_at is not None
    if not over:
        return
    rows.free_cards(tx, row["uid"], update.attempt)
    reported = f"{update.status.value}, exit code {update.exit_code}, reason {plain(update.reason)}"
    if _is_repetition(row, attempt, update) or _told_before(tx, row, update, reported):
        return
    emit(
        tx,
        EventKind.LATE_RESULT,
        code=update.status.value,
        node_id=who.node_id,
        task_id=row["id"],
        attempt=update.attempt,
        actor=who.name,
        detail=f"reported {reported}; the task is {row['status']} and stays so",
    )


def _is_repetition(row: Row, attempt: Any, update: TaskUpdate) -> bool:
    if attempt.ended_at is None or attempt.exit_code != update.exit_code:
        return False
    if row["attempt"] == update.attempt and row["status"] == update.status.value:
        return True
    # An infrastructure end that put the task back into the queue.
    return update.status is Status.FAILED and attempt.reason == update.reason


def _told_before(tx: Tx, row: Row, update: TaskUpdate, reported: str) -> bool:
    told = sa.select(events.c.id).where(
        events.c.kind == EventKind.LATE_RESULT.value,
        events.c.task_id == row["id"],
        events.c.attempt == update.attempt,
        events.c.detail.startswith(f"reported {reported};", autoescape=True),
    )
    return tx.execute(told.limit(1)).first() is not None
