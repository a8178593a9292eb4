"""What operators do to a node: cordon, drain, release, delete."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.nodes import Cordon, CordonRequest, DrainRequest, EventKind, NodeState, UncordonRequest
from runtime.protocol.problems import Problem
from runtime.protocol.states import ON_NODE, Status
from runtime.server.services.events import emit
from runtime.server.services.nodes import not_found
from runtime.server.services.presence import Presence
from runtime.server.services.tasks import lifecycle
from runtime.server.store.database import Database
from runtime.server.store.tables import exclusions, gpu_allocations, nodes, orphans, tasks, witnesses
from runtime.server.store.transaction import Tx


def cordon(db: Database, presence: Presence, node_id: str, request: CordonRequest, owner: str) -> None:
    """Give the node no new work; what it holds goes on, what it has not claimed goes elsewhere.

    Raises state_conflict when it was to be free and is not.
    """
    wanted = Cordon(request.reason, owner, times.to_wire(times.now()))
    _cordon(db, presence, node_id, wanted, None, if_free=request.if_free)


def drain(db: Database, presence: Presence, node_id: str, request: DrainRequest, owner: str) -> None:
    """Cordon, and at the deadline leave, stop or reschedule what still runs."""
    _cordon(db, presence, node_id, Cordon(request.reason, owner, times.to_wire(times.now())), request)


def uncordon(db: Database, presence: Presence, node_id: str, request: UncordonRequest, owner: str) -> None:
    """The node may get work again. Raises state_conflict when a certain cordon was meant, and another or none is there.

    Who speaks of any cordon judges the node; who ends a certain one does not, and what was counted against the node
    stays.
    """
    certain = request.owner is not None or request.reason is not None
    judged = {} if certain else {"bad_ends": 0}

    def change(tx: Tx) -> None:
        _must_exist(tx, node_id)
        if certain:
            held = _held_cordon(tx, node_id)
            if held is None or request.owner not in (None, held.owner) or request.reason not in (None, held.reason):
                raise _not_that_cordon(node_id, held, owner)
        tx.execute(
            sa.update(nodes)
            .where(nodes.c.id == node_id)
            .values(
                cordon_reason=None,
                cordon_owner=None,
                cordon_since=None,
                draining=False,
                drain_deadline=None,
                drain_then=None,
                **judged,
            )
        )
        emit(tx, EventKind.NODE_CORDONED, code="uncordoned", node_id=node_id, actor=owner)
        tx.after(lambda: presence.reread_cordon(node_id))

    db.write(change)


def release(db: Database, presence: Presence, node_id: str, owner: str) -> None:
    """Let whoever asks next take the node id. Raises node_online while its holder speaks.

    Nothing is known of what runs on the former holder: its tasks wait, move or end as each was told to for a lost
    node, and its cards stay taken until a node of this name says that their holders are gone, or an operator does.
    """
    _refuse_online(presence, node_id, "released")

    def change(tx: Tx) -> None:
        _must_exist(tx, node_id)
        claims = tasks.c.status.in_([Status.RUNNING.value, Status.SLEEPING.value])
        held = tx.execute(sa.select(tasks.c.id).where(tasks.c.node_id == node_id, claims).order_by(tasks.c.id))
        names = list(held.scalars())
        holder = tx.execute(sa.select(nodes.c.instance_id).where(nodes.c.id == node_id)).scalar()
        lifecycle.node_lost(tx, node_id, times.now())
        tx.execute(sa.update(nodes).where(nodes.c.id == node_id).values(instance_id=None))
        what = f"{len(names)} task(s) that it had claimed: {', '.join(names[:20])}" if names else "no claimed task"
        detail = f"Instance {holder} no longer holds the name; {what}."
        emit(tx, EventKind.OPERATOR_ACTION, code="node_released", node_id=node_id, actor=owner, detail=detail)
        tx.after(lambda: presence.released(node_id))

    db.write(change)


def delete(db: Database, presence: Presence, node_id: str, owner: str) -> None:
    """Forget the node. Raises node_online, or node_has_tasks while a task belongs to it."""
    _refuse_online(presence, node_id, "deleted")

    def change(tx: Tx) -> None:
        _must_exist(tx, node_id)
        held = tx.execute(
            sa.select(tasks.c.id).where(
                tasks.c.node_id == node_id, tasks.c.status.in_([status.value for status in ON_NODE])
            )
        ).scalars()
        names = sorted(held)
        if names:
            raise Problem(
                "node_has_tasks",
                f"Node {node_id} holds {len(names)} task(s) ({', '.join(names[:5])}); stop or reschedule them first.",
                tasks=names[:100],
            )
        tx.execute(sa.delete(gpu_allocations).where(gpu_allocations.c.node_id == node_id))
        for table in (exclusions, witnesses, orphans):
            tx.execute(sa.delete(table).where(table.c.node_id == node_id))
        tx.execute(sa.delete(nodes).where(nodes.c.id == node_id))
        emit(tx, EventKind.OPERATOR_ACTION, code="node_deleted", node_id=node_id, actor=owner)
        tx.after(lambda: presence.forget(node_id))

    db.write(change)


def _cordon(
    db: Database,
    presence: Presence,
    node_id: str,
    wanted: Cordon,
    request: DrainRequest | None,
    *,
    if_free: bool = False,
) -> None:
    deadline = None
    if request is not None:
        deadline = times.to_wire(times.now() + timedelta(seconds=request.deadline_s))
    then = request.then if request is not None else None

    def change(tx: Tx) -> None:
        _must_exist(tx, node_id)
        held = _held_cordon(tx, node_id) if if_free else None
        if held is not None:
            raise _not_that_cordon(node_id, held, wanted.owner)
        tx.execute(
            sa.update(nodes)
            .where(nodes.c.id == node_id)
            .values(
                cordon_reason=wanted.reason,
                cordon_owner=wanted.owner,
                cordon_since=wanted.since,
                draining=request is not None,
                drain_deadline=deadline,
                drain_then=then,
            )
        )
        lifecycle.node_left(tx, node_id)
        emit(
            tx,
            EventKind.NODE_CORDONED,
            code="draining" if request is not None else "cordoned",
            node_id=node_id,
            actor=wanted.owner,
            detail=wanted.reason,
        )
        tx.after(lambda: presence.reread_cordon(node_id))

    db.write(change)


def _held_cordon(tx: Tx, node_id: str) -> Cordon | None:
    row = tx.execute(
        sa.select(nodes.c.cordon_reason, nodes.c.cordon_owner, nodes.c.cordon_since).where(nodes.c.id == node_id)
    ).one()
    if row.cordon_since is None:
        return None
    return Cordon(row.cordon_reason or "", row.cordon_owner or "", row.cordon_since)


def _not_that_cordon(node_id: str, held: Cordon | None, actor: str) -> Problem:
    """``actor`` in the answer lets a caller tell its own cordon of an earlier time, whose owner it is, from another."""
    reason = f" ({held.reason})" if held is not None and held.reason else ""
    what = "is not cordoned" if held is None else f"is cordoned by {held.owner}{reason}; that cordon stays"
    cordon = None if held is None else asdict(held)
    return Problem("state_conflict", f"Node {node_id} {what}.", node_id=node_id, cordon=cordon, actor=actor)


def _must_exist(tx: Tx, node_id: str) -> None:
    if tx.execute(sa.select(nodes.c.id).where(nodes.c.id == node_id).with_for_update()).first() is None:
        raise not_found(node_id)


def _refuse_online(presence: Presence, node_id: str, what: str) -> None:
    view = presence.view(node_id)
    if view is not None and view.state in (NodeState.ONLINE, NodeState.UNREACHABLE) and view.instance_id is not None:
        raise Problem(
            "node_online",
            f"Node {node_id} is {view.state.value}; only a node that is lost or offline can be {what}.",
            state=view.state.value,
        )
