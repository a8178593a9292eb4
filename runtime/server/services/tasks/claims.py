"""A node's hold on a task: who holds it, what a refusal says of it, how it passes on."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import Problem
from runtime.protocol.states import Status
from runtime.protocol.tasks import Reclaim
from runtime.server.services.events import emit
from runtime.server.services.tasks import rows, view
from runtime.server.services.tasks.rows import Row
from runtime.server.store.database import Database
from runtime.server.store.tables import attempts, tasks
from runtime.server.store.transaction import Tx


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

    ``conflict``: nothing was changed. ``mine``: the claim is the reporter's own.
    """

    stored: view.Stored
    conflict: bool
    mine: bool
    claimed: bool = False


def owns(row: Row, who: Reporter, attempt: int, token: str) -> bool:
    """Whether the task's claim is this instance's, by this very token."""
    here = row["node_id"] == who.node_id and row["attempt"] == attempt and row["claim_instance"] == who.instance_id
    if row["claim_token"] is None:
        # Made anew from a node's word that had no token in it, after the database was put back.
        return here and row["status"] in (Status.RUNNING.value, Status.SLEEPING.value)
    return here and _same(row["claim_token"], token)


def attempt_of(tx: Tx, uid: str, attempt: int, who: Reporter, token: str) -> Any:
    """The row of an attempt, over or not, that is or was this node's by this very token; None: it never was."""
    found = tx.execute(sa.select(attempts).where(attempts.c.uid == uid, attempts.c.attempt == attempt)).first()
    if found is None or found.node_id != who.node_id or found.claim_token is None:
        return None
    return found if _same(found.claim_token, token) else None


def _same(held: str, token: str) -> bool:
    # As bytes: a header may hold any character, and texts are only compared when they are ASCII.
    return hmac.compare_digest(held.encode(), token.encode("utf-8", "surrogateescape"))


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


def stored(tx: Tx, row: Row) -> view.Stored:
    """The task as it is in this transaction."""
    return view.read(tx.connection, [row])[0]


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
            return Answer(stored(tx, row), conflict=True, mine=mine)
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
        # Not with its secrets: the container has them already, and whoever lacks them asks with the new token.
        return Answer(stored(tx, rows.must_find_locked(tx, task_id)), conflict=False, mine=True)

    return db.write(change)
