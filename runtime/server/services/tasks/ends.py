"""How an attempt is over: back to ``pending`` or ended for good, and what that says about the node."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from runtime.protocol.nodes import Cordon, EventKind
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Desired, Status
from runtime.protocol.times import to_wire
from runtime.server.services.events import emit
from runtime.server.services.tasks import rows
from runtime.server.services.tasks.rows import Row
from runtime.server.services.tasks.rules import BAD_ENDS_LIMIT, EXCLUDED_S, same_cause
from runtime.server.store.tables import attempts, exclusions, nodes, tasks
from runtime.server.store.transaction import Tx

CORDON_OWNER = "system"


def close_attempt(tx: Tx, row: Row, now: datetime, **facts: Any) -> None:
    """Write how the task's present attempt ended, and count it; ``facts`` are columns of attempts."""
    if facts.get("reason") is not None:
        tx.ended(facts["reason"])
    tx.execute(
        sa.update(attempts)
        .where(attempts.c.uid == row["uid"], attempts.c.attempt == row["attempt"])
        .values(ended_at=to_wire(now), **facts)
    )


def back_to_pending(
    tx: Tx,
    row: Row,
    now: datetime,
    *,
    actor: str,
    reason: str | None = None,
    detail: str | None = None,
    starts: int | None = None,
    cards_gone: bool,
    claim: tuple[str, str] | None = None,
    **facts: Any,
) -> bool:
    """End the attempt and queue the task again; False when the row has changed meanwhile.

    ``cards_gone`` says that nothing of this attempt can hold its cards any more. Where its container may still run,
    the number of the next attempt counts from now on, placed or not: it is what tells the node to end its copy.
    ``starts`` replaces the count. What the operator wanted of the container that is gone (sleep) is over: the task
    shall run.
    """
    values: dict[str, Any] = {**rows.NOT_PLACED, "desired": Desired.RUN.value}
    if starts is not None:
        values["starts"] = starts
    if not rows.move(tx, row, Status.PENDING, values, actor=actor, reason=reason, detail=detail, claim=claim):
        return False
    close_attempt(tx, row, now, reason=reason, **facts)
    _settle_cards(tx, row, cards_gone)
    if not cards_gone:
        tx.execute(sa.update(tasks).where(tasks.c.uid == row["uid"]).values(attempt=row["attempt"] + 1))
    return True


def finish(
    tx: Tx,
    row: Row,
    status: Status,
    now: datetime,
    *,
    actor: str,
    reason: str | None = None,
    detail: str | None = None,
    starts: int | None = None,
    cards_gone: bool,
    claim: tuple[str, str] | None = None,
    log_tail: str | None = None,
    **facts: Any,
) -> bool:
    """End the task for good and wipe its secrets; False when the row has changed meanwhile.

    ``facts``: exit_code, error, node_finished_at, container_id, where known.
    """
    values: dict[str, Any] = {
        "finished_at": to_wire(now),
        "reason": reason,
        "secrets": None,
        "stalled": False,
        "node_lost_since": None,
        "log_tail": log_tail,
        **facts,
    }
    if starts is not None:
        values["starts"] = starts
    if not rows.move(tx, row, status, values, actor=actor, reason=reason, detail=detail, claim=claim):
        return False
    tx.wiped = True
    if row["node_id"] is not None:
        close_attempt(tx, row, now, reason=reason, **facts)
    _settle_cards(tx, row, cards_gone)
    return True


def exclude(tx: Tx, uid: str, node_id: str, now: datetime, seconds: float = EXCLUDED_S) -> None:
    """Leave ``node_id`` out for this task for a while."""
    tx.execute(sa.delete(exclusions).where(exclusions.c.uid == uid, exclusions.c.node_id == node_id))
    until = to_wire(now + timedelta(seconds=seconds))
    tx.execute(sa.insert(exclusions).values(uid=uid, node_id=node_id, until=until))


def note_bad_end(tx: Tx, node_id: str, now: datetime, reason: Reason, claimed_at: str | None) -> Cordon | None:
    """One more hand-back or infrastructure end in a row; the cordon when that was one too many.

    One restart of host or engine counts once, however many tasks it ended. ``claimed_at``: when the one that ended was
    claimed. What the node had not claimed yet goes elsewhere.
    """
    node = tx.execute(sa.select(nodes).where(nodes.c.id == node_id).with_for_update()).mappings().first()
    if node is None or same_cause(reason, claimed_at, node["bad_cause"], node["bad_cause_at"]):
        return None
    bad = node["bad_ends"] + 1
    counted = {"bad_ends": bad, "bad_cause": reason.value, "bad_cause_at": to_wire(now)}
    tx.execute(sa.update(nodes).where(nodes.c.id == node_id).values(counted))
    if bad < BAD_ENDS_LIMIT:
        return None
    text = f"{bad} times in a row tasks came back or ended through the node's own doing, the last with {reason.value}"
    cordon = Cordon(text, CORDON_OWNER, to_wire(now))
    cordoned = tx.execute(
        sa.update(nodes)
        .where(nodes.c.id == node_id, nodes.c.cordon_since.is_(None))
        .values(cordon_reason=cordon.reason, cordon_owner=cordon.owner, cordon_since=cordon.since)
    )
    if not cordoned.rowcount:
        return None
    emit(tx, EventKind.NODE_CORDONED, code="bad_ends", node_id=node_id, actor=CORDON_OWNER, detail=text)
    unclaimed_back(tx, node_id, now, "the node was cordoned")
    return cordon


def unclaimed_back(tx: Tx, node_id: str, now: datetime, detail: str) -> None:
    """What the node had not claimed goes back into the queue."""
    for row in rows.on_node(tx, node_id, Status.SCHEDULED):
        back_to_pending(tx, row, now, actor="server", detail=detail, cards_gone=True)


def note_good_end(tx: Tx, node_id: str) -> None:
    """A program ran to its end there: whatever came before is forgiven."""
    tx.execute(sa.update(nodes).where(nodes.c.id == node_id, nodes.c.bad_ends != 0).values(bad_ends=0))


def add_warning(tx: Tx, row: Row, code: str, detail: str, *, about: str = "") -> None:
    """Add a warning to a task, once per code and what it is ``about`` (how its detail begins)."""
    if any(warning["code"] == code and warning["detail"].startswith(about) for warning in row["warnings"]):
        return
    warnings = [*row["warnings"], {"code": code, "detail": detail}]
    tx.execute(sa.update(tasks).where(tasks.c.uid == row["uid"]).values(warnings=warnings))
    tx.touch_task(row["uid"])


def _settle_cards(tx: Tx, row: Row, gone: bool) -> None:
    if gone:
        rows.free_cards(tx, row["uid"], row["attempt"])
    else:
        rows.keep_cards_until_gone(tx, row["uid"], row["attempt"])
