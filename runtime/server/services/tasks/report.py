"""A node's word about its task: the compare-and-set behind ``PUT /api/v1/tasks/{id}``, and ``reclaim``."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runtime.protocol.names import is_task_id
from runtime.protocol.nodes import Cordon, EventKind
from runtime.protocol.problems import Problem
from runtime.protocol.reasons import Reason
from runtime.protocol.states import TERMINAL, Desired, Status
from runtime.protocol.tasks import CheckpointResume, Reclaim, TaskUpdate
from runtime.protocol.times import from_wire, to_wire
from runtime.server.services.events import emit
from runtime.server.services.tasks import ends, rows, rules, view
from runtime.server.services.tasks.rows import Row
from runtime.server.store.database import Database, Tx
from runtime.server.store.tables import attempts, events, gpu_allocations, tasks


@dataclass(frozen=True)
class Reporter:
    """The node and the instance that speak."""

    node_id: str
    instance_id: str

    @property
    def name(self) -> str:
        return f"node:{self.node_id}"


@dataclass(frozen=True)
class Answer:
    """``stored`` is the task after the change, or the one that stands in its way.

    ``conflict``: nothing was changed. ``mine``: the claim is the reporter's own. ``removed``: the task was to be
    deleted, and is.
    """

    stored: view.Stored
    conflict: bool
    mine: bool
    claimed: bool = False
    removed: bool = False


def report(
    db: Database,
    who: Reporter,
    task_id: str,
    update: TaskUpdate,
    now: datetime,
    *,
    forget: Callable[[str], None],
    cordoned: Callable[[str, Cordon], None],
) -> Answer:
    """Carry out ``update``, or say what is instead. It is on disk when this returns.

    After the commit ``forget(uid)`` is called when the task's row is gone, ``cordoned(node_id, cordon)`` when
    this end was one too many for the node. Raises Problem task_not_found, illegal_transition.
    """
    reason = rules.judge(update)
    if not is_task_id(task_id):
        raise rows.not_found(task_id)

    def change(tx: Tx) -> Answer:
        row = rows.must_find_locked(tx, task_id)
        if not _matches(row, who, update):
            _note_late_result(tx, row, who, update)
            return Answer(_stored(tx, row), conflict=True, mine=owns(row, who, update.attempt, update.claim_token))
        if update.from_status is Status.SCHEDULED:
            _claim(tx, row, who, update, now)
        elif update.status in (Status.SLEEPING, Status.RUNNING):
            _sleep_or_wake(tx, row, who, update)
        else:
            removed, cordon = _end(tx, row, who, update, reason, now)
            if cordon is not None:
                tx.after(lambda: cordoned(who.node_id, cordon))
            if removed is not None:
                tx.after(lambda: forget(row["uid"]))
                return Answer(removed, conflict=False, mine=True, removed=True)
        return Answer(
            _stored(tx, rows.must_find_locked(tx, task_id)),
            conflict=False,
            mine=True,
            claimed=update.from_status is Status.SCHEDULED,
        )

    return db.write(change)


def hand_over(tx: Tx, node_id: str, former: str, successor: str) -> None:
    """The claims of instance ``former`` are ``successor``'s from now on.

    For the moment in which a new instance is bound to a node id and proven to be the same machine: it is the
    only proof of succession there will ever be.
    """
    held = sa.select(tasks.c.uid).where(
        tasks.c.node_id == node_id,
        tasks.c.claim_instance == former,
        tasks.c.status.in_([Status.RUNNING.value, Status.SLEEPING.value]),
    )
    for uid in tx.execute(held.with_for_update()).scalars().all():
        tx.execute(sa.update(tasks).where(tasks.c.uid == uid).values(claim_instance=successor))
        tx.touch_task(uid)


def reclaim(db: Database, who: Reporter, task_id: str, wanted: Reclaim) -> Answer:
    """Give an instance whose journal is lost its claim back, under a new token.

    The claim is its own, or was handed over to it by :func:`hand_over`. Raises Problem task_not_found.
    """

    def change(tx: Tx) -> Answer:
        row = rows.must_find_locked(tx, task_id)
        held = row["status"] in (Status.RUNNING.value, Status.SLEEPING.value)
        here = row["node_id"] == who.node_id and row["attempt"] == wanted.attempt
        if not (held and here and row["claim_instance"] == who.instance_id):
            mine = owns(row, who, wanted.attempt, wanted.claim_token)
            return Answer(_stored(tx, row), conflict=True, mine=mine)
        claim = {"claim_token": wanted.claim_token, "claim_instance": who.instance_id}
        tx.execute(sa.update(tasks).where(tasks.c.uid == row["uid"]).values(**claim))
        tx.execute(
            sa.update(attempts)
            .where(attempts.c.uid == row["uid"], attempts.c.attempt == row["attempt"])
            .values(claim_token=wanted.claim_token, instance_id=who.instance_id)
        )
        tx.touch_task(row["uid"])
        emit(
            tx,
            EventKind.CLAIM_RECOVERED,
            code="reclaimed",
            node_id=who.node_id,
            task_id=row["id"],
            attempt=row["attempt"],
            actor=who.name,
            detail="the node lost its journal and took its claim again",
        )
        return Answer(_stored(tx, rows.must_find_locked(tx, task_id)), conflict=False, mine=True, claimed=True)

    return db.write(change)


def note_checkpoint(db: Database, who: Reporter, task_id: str, found: CheckpointResume) -> None:
    """Write the event that says from where a task goes on. Raises Problem task_not_found, state_conflict."""

    def change(tx: Tx) -> Answer | None:
        row = rows.must_find_locked(tx, task_id)
        if row["node_id"] != who.node_id or not owns(row, who, found.attempt, found.claim_token):
            return Answer(_stored(tx, row), conflict=True, mine=False)
        if found.found:
            text = f"goes on from {found.path} ({found.framework}, step {found.step})"
        else:
            text = "starts from scratch: no checkpoint is proven complete"
        refused = "; ".join(f"{item.path}: {item.reason}" for item in found.rejected[:20])
        emit(
            tx,
            EventKind.CHECKPOINT_RESUME,
            code="found" if found.found else "none",
            node_id=who.node_id,
            task_id=row["id"],
            attempt=row["attempt"],
            actor=who.name,
            detail=plain(f"{text}; rejected: {refused}" if refused else text),
        )
        return None

    answer = db.write(change)
    if answer is not None:
        raise conflict(answer, None)


def conflict(answer: Answer, task: dict[str, Any] | None) -> Problem:
    """409 state_conflict; ``task`` (with its secrets) goes along when the claim is the asker's own."""
    row = answer.stored.row
    where = f"on node {row['node_id']}" if row["node_id"] else "on no node"
    members: dict[str, Any] = {"task": task} if task is not None else {}
    return Problem(
        "state_conflict",
        f"Task {row['id']} is {row['status']} {where}, attempt {row['attempt']}; nothing was changed.",
        node_id=row["node_id"],
        attempt=row["attempt"],
        claim_token_matches=answer.mine,
        task_status=row["status"],
        **members,
    )


def owns(row: Row, who: Reporter, attempt: int, token: str) -> bool:
    """Whether the task's claim is this instance's, by this very token."""
    return (
        row["claim_token"] is not None
        and hmac.compare_digest(row["claim_token"], token)
        and row["claim_instance"] == who.instance_id
        and row["node_id"] == who.node_id
        and row["attempt"] == attempt
    )


def plain(text: str | None) -> str | None:
    """``text`` as every database stores it: PostgreSQL takes no NUL."""
    return text.replace("\x00", "\ufffd") if text is not None else None


def _matches(row: Row, who: Reporter, update: TaskUpdate) -> bool:
    if row["status"] != update.from_status.value:
        return False
    if update.from_status is Status.SCHEDULED:
        return bool(row["node_id"] == who.node_id and row["attempt"] == update.attempt)
    return owns(row, who, update.attempt, update.claim_token)


def _stored(tx: Tx, row: Row) -> view.Stored:
    return view.read(tx.connection, [row])[0]


def _claim(tx: Tx, row: Row, who: Reporter, update: TaskUpdate, now: datetime) -> None:
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
    if update.status is Status.RUNNING and row["spec"].get("gpus"):
        held = sa.select(gpu_allocations.c.uid).where(
            gpu_allocations.c.uid == row["uid"], gpu_allocations.c.attempt == row["attempt"]
        )
        if tx.execute(held).first() is None:
            raise Problem("cards_not_allocated", f"The cards of task {row['id']} are not allocated to it again yet.")
    _must(rows.move(tx, row, update.status, actor=who.name, claim=_claim_of(row)))
    if update.status is Status.SLEEPING:
        rows.free_cards(tx, row["uid"], row["attempt"])


def _end(
    tx: Tx, row: Row, who: Reporter, update: TaskUpdate, reason: Reason | None, now: datetime
) -> tuple[view.Stored | None, Cordon | None]:
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
    if result.handed_back:
        ends.exclude(tx, row["uid"], who.node_id, now)
    cordon = None
    if result.bad and reason is not None:
        cordon = ends.note_bad_end(tx, who.node_id, now, reason.value)
    elif result.ran:
        ends.note_good_end(tx, who.node_id)
    if row["desired"] == Desired.DELETE.value and result.status in TERMINAL:
        last = _stored(tx, rows.must_find_locked(tx, row["id"]))
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


def _note_late_result(tx: Tx, row: Row, who: Reporter, update: TaskUpdate) -> None:
    """A result that comes after the task's end, or for an earlier attempt, changes nothing but is told.

    The repetition of the report that made the end is no news. What an earlier attempt on this node held is
    free now: the node says itself that its container ended.
    """
    if update.status not in TERMINAL or update.attempt > row["attempt"]:
        return
    attempt = tx.execute(
        sa.select(attempts).where(attempts.c.uid == row["uid"], attempts.c.attempt == update.attempt)
    ).first()
    if attempt is None or attempt.node_id != who.node_id or attempt.claim_token != update.claim_token:
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
