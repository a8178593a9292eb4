"""From which checkpoint an attempt goes on: told by its node, kept as an event."""

from __future__ import annotations

import sqlalchemy as sa

from runtime.protocol.nodes import EventKind
from runtime.protocol.tasks import CheckpointResume
from runtime.server.services.events import DETAIL_CHARS, emit
from runtime.server.services.tasks import claims, rows
from runtime.server.services.tasks.claims import Answer, Reporter
from runtime.server.services.tasks.rows import Row
from runtime.server.store.database import Database
from runtime.server.store.tables import events
from runtime.server.store.transaction import Tx

SHOWN = 20


def note(db: Database, who: Reporter, task_id: str, found: CheckpointResume) -> None:
    """Write the event. The attempt may be over by now: a node that could not say it at once says it later, and says
    it again when it has not heard the answer. Raises Problem task_not_found, state_conflict."""

    def change(tx: Tx) -> Answer | None:
        row = rows.must_find_locked(tx, task_id)
        if claims.attempt_of(tx, row["uid"], found.attempt, who, found.claim_token) is None:
            return Answer(claims.stored(tx, row), conflict=True, mine=False)
        detail = sentence(found)
        if not _is_known(tx, row, found.attempt, detail):
            emit(
                tx,
                EventKind.CHECKPOINT_RESUME,
                code="found" if found.found else "none",
                node_id=who.node_id,
                task_id=row["id"],
                attempt=found.attempt,
                actor=who.name,
                detail=detail,
            )
        return None

    answer = db.write(change)
    if answer is not None:
        raise claims.conflict(answer, None)


def sentence(found: CheckpointResume) -> str:
    """For people. Pure."""
    if found.found:
        step = f"step {found.step}" if found.step is not None else "step unknown"
        text = f"goes on from {found.path} ({found.framework}, {step})"
    else:
        text = "starts from scratch: no checkpoint is proven complete"
    refused = "; ".join(f"{item.path}: {item.reason}" for item in found.rejected[:SHOWN])
    whole = rows.plain(f"{text}; rejected: {refused}" if refused else text) or ""
    return whole[:DETAIL_CHARS]


def _is_known(tx: Tx, row: Row, attempt: int, detail: str) -> bool:
    """Whether this very thing was told before, of this task and not of an earlier one of its name."""
    told = sa.select(events.c.id).where(
        events.c.task_id == row["id"],
        events.c.kind == EventKind.CHECKPOINT_RESUME.value,
        events.c.attempt == attempt,
        events.c.detail == detail,
        events.c.time >= row["created_at"],
    )
    return tx.execute(told.limit(1)).first() is not None
