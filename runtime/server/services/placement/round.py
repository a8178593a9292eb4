"""One round of placement: read, decide, carry out. The allocations' unique key has the last word."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

import sqlalchemy as sa

from runtime.protocol.codec import encode
from runtime.protocol.states import Desired, Status
from runtime.protocol.tasks import AssignedGpu
from runtime.protocol.times import to_wire
from runtime.server.services import reservations
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement import snapshot
from runtime.server.services.placement.decide import decide
from runtime.server.services.placement.model import Assignment, Pick
from runtime.server.services.placement.waking import Sleeper, same_cards
from runtime.server.services.tasks import rows
from runtime.server.store.database import Database
from runtime.server.store.tables import attempts, gpu_allocations, tasks
from runtime.server.store.transaction import Tx

log = logging.getLogger(__name__)

BATCH = 100
"""So many assignments a transaction: a full fleet's round must not keep claims waiting."""


class Settings(Protocol):
    @property
    def mps_max(self) -> int: ...


def place(db: Database, views: Sequence[NodeView], now: datetime, settings: Settings) -> int:
    """Give waiting tasks to nodes; how many were placed or woken.

    What has changed since the snapshot is left as it is and looked at again in the next round.
    """
    with db.read() as connection:
        seen = snapshot.read(connection, now)
    if seen.empty:
        return 0
    sites = seen.sites(views, settings.mps_max)
    done = 0
    for sleeper in seen.sleepers:
        picks = same_cards(sleeper, sites[sleeper.node_id]) if sleeper.node_id in sites else None
        if picks is not None:
            done += db.write(functools.partial(_wake, sleeper=sleeper, picks=picks))
    for batch in _batches(decide(seen.candidates, sites)):
        done += db.write(functools.partial(_apply_all, batch=batch, now=now))
    return done


def _apply_all(tx: Tx, batch: Sequence[Assignment], now: datetime) -> int:
    held = reservations.reserved(tx.connection)
    return sum(
        _apply(tx, made, now)
        for made in batch
        if held.isdisjoint((made.node_id, pick.parent_uuid) for pick in made.picks)
    )


def _apply(tx: Tx, made: Assignment, now: datetime) -> bool:
    task = made.candidate
    row = rows.find_locked(tx, task.task_id)
    if (
        row is None
        or row["uid"] != task.uid
        or row["attempt"] != task.attempt
        or row["status"] != Status.PENDING.value
        or row["desired"] != Desired.RUN.value
    ):
        return False
    attempt = _next_attempt(tx, row)
    try:
        with tx.connection.begin_nested():
            _allocate(tx, task.uid, attempt, made.node_id, made.picks)
    except sa.exc.IntegrityError:
        log.warning(
            "a card of node %s was taken meanwhile; task %s waits for the next round", made.node_id, task.task_id
        )
        return False
    tx.execute(
        sa.insert(attempts).values(
            uid=task.uid,
            attempt=attempt,
            node_id=made.node_id,
            scheduled_at=to_wire(now),
            gpus=[_shown(pick) for pick in made.picks],
        )
    )
    return rows.move(
        tx,
        row,
        Status.SCHEDULED,
        {**rows.NOT_PLACED, "node_id": made.node_id, "attempt": attempt, "scheduled_at": to_wire(now)},
        actor="server",
        detail=f"placed on {made.node_id}",
    )


def _next_attempt(tx: Tx, row: sa.RowMapping) -> int:
    """One more than the last that was given to a node; a task that was taken from one has that number already."""
    number: int = row["attempt"]
    given = sa.select(attempts.c.attempt).where(attempts.c.uid == row["uid"], attempts.c.attempt == number)
    following = number + 1 if number == 0 or tx.execute(given).first() is not None else number
    floor: int = row["attempt_floor"]
    return max(following, floor)


def _wake(tx: Tx, sleeper: Sleeper, picks: Sequence[Pick]) -> bool:
    row = tx.execute(sa.select(tasks).where(tasks.c.uid == sleeper.uid).with_for_update()).mappings().first()
    if (
        row is None
        or row["status"] != Status.SLEEPING.value
        or row["attempt"] != sleeper.attempt
        or row["desired"] != Desired.RUN.value
    ):
        return False
    held = reservations.reserved(tx.connection)
    if not held.isdisjoint((sleeper.node_id, pick.parent_uuid) for pick in picks):
        return False
    try:
        with tx.connection.begin_nested():
            _allocate(tx, sleeper.uid, sleeper.attempt, sleeper.node_id, picks)
    except sa.exc.IntegrityError:
        return False
    tx.touch_task(sleeper.uid)
    return True


def _allocate(tx: Tx, uid: str, attempt: int, node_id: str, picks: Iterable[Pick]) -> None:
    lines: list[dict[str, Any]] = [
        {
            "node_id": node_id,
            "parent_uuid": pick.parent_uuid,
            "slot": pick.slot,
            "gpu_uuid": pick.card.uuid,
            "mode": pick.mode,
            "uid": uid,
            "attempt": attempt,
        }
        for pick in picks
    ]
    if lines:
        tx.execute(sa.insert(gpu_allocations), lines)


def _shown(pick: Pick) -> dict[str, Any]:
    card = pick.card
    assigned = AssignedGpu(card.uuid, card.index, card.vendor, card.model, card.parent_uuid, card.profile)
    shown: dict[str, Any] = encode(assigned)
    return shown


def _batches(assignments: Sequence[Assignment]) -> Iterable[Sequence[Assignment]]:
    waiting = iter(assignments)
    while batch := list(itertools.islice(waiting, BATCH)):
        yield batch
