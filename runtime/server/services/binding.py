"""The stored side of a node's identity: binding an instance to a node id, and reading nodes back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.heartbeat import UNCHANGING, Heartbeat
from runtime.protocol.nodes import Cordon, EventKind, NodeState
from runtime.protocol.states import Status
from runtime.server.services import cards as card_rules
from runtime.server.services import registration
from runtime.server.services.events import emit
from runtime.server.services.held import Held, observation, restored
from runtime.server.services.registration import KnownNode, Verdict
from runtime.server.services.tasks.claims import hand_over
from runtime.server.store.database import Database, Tx
from runtime.server.store.tables import nodes, tasks

CLAIMED = (Status.RUNNING.value, Status.SLEEPING.value)
"""States of tasks whose claim a node holds."""


@dataclass(frozen=True)
class Bound:
    """``unbound``: the node id that the instance gave up for this one."""

    held: Held
    unbound: str | None


def known(held: Held) -> KnownNode:
    """The memory's record as the decision wants it, for a beat of the holder itself."""
    return KnownNode(
        node_id=held.node_id,
        instance_id=held.instance_id,
        fingerprint=held.fingerprint,
        boot_id=held.boot_id,
        run=held.run,
        former_boots=frozenset(held.former_boots),
        cloned_boots=frozenset(held.cloned_boots),
    )


def bind(db: Database, held: Held | None, beat: Heartbeat, started_at: float, now: float, lost_after_s: float) -> Bound:
    """Decide on a beat of an instance that does not hold the node id in memory, and store the binding.

    Returns when it is on disk. Raises what ``registration.decide`` raises; then nothing is stored.
    """
    silent_for = now - max(started_at, (held.heard_at if held is not None else None) or started_at)

    def change(tx: Tx) -> tuple[sa.Row[Any] | None, str | None]:
        row = tx.execute(sa.select(nodes).where(nodes.c.id == beat.node_id).with_for_update()).first()
        other = tx.execute(
            sa.select(nodes).where(nodes.c.instance_id == beat.instance_id, nodes.c.id != beat.node_id)
        ).first()
        decision = registration.decide(
            _stored(tx, row, silent_for, held),
            _stored(tx, other, now - started_at, None),
            beat,
            lost_after_s=lost_after_s,
        )
        _store(tx, beat, row, decision)
        stored = tx.execute(sa.select(nodes).where(nodes.c.id == beat.node_id)).one()
        return stored, decision.unbind_node

    row, unbound = db.write(change)
    assert row is not None
    return Bound(_held(row), unbound)


def stored_instance(db: Database, node_id: str) -> str | None:
    with db.read() as connection:
        return connection.execute(sa.select(nodes.c.instance_id).where(nodes.c.id == node_id)).scalar()


def load_all(db: Database, since: str | None = None) -> list[Held]:
    """Every stored node (seen after ``since``, an RFC 3339 text, where given)."""
    query = sa.select(nodes)
    if since is not None:
        query = query.where(nodes.c.last_seen_at > since)
    with db.read() as connection:
        return [_held(row) for row in connection.execute(query)]


def take_cordon(db: Database, held: Held) -> None:
    """Take over what is stored of the node's cordon and drain."""
    with db.read() as connection:
        row = connection.execute(sa.select(nodes).where(nodes.c.id == held.node_id)).first()
    if row is not None:
        _set_cordon(held, row)


def _set_cordon(held: Held, row: sa.Row[Any]) -> None:
    held.cordon = None
    if row.cordon_since is not None:
        held.cordon = Cordon(row.cordon_reason or "", row.cordon_owner or "", row.cordon_since)
    held.draining, held.drain_deadline, held.drain_then = row.draining, row.drain_deadline, row.drain_then


def _stored(tx: Tx, row: sa.Row[Any] | None, silent_for_s: float, held: Held | None) -> KnownNode | None:
    if row is None:
        return None
    if row.last_seen_at is not None:
        # Another process may have heard it later than this one.
        heard_elsewhere = time.time() - times.from_wire(row.last_seen_at).timestamp()
        silent_for_s = min(silent_for_s, max(0.0, heard_elsewhere))
    claims = tx.execute(
        sa.select(sa.func.count()).select_from(tasks).where(tasks.c.node_id == row.id, tasks.c.status.in_(CLAIMED))
    ).scalar_one()
    # What this process heard is newer than what it has flushed.
    heard = held.sections.get("host") if held is not None else None
    hostname = heard.hostname if heard is not None else ((row.facts or {}).get("host") or {}).get("hostname")
    return KnownNode(
        node_id=row.id,
        instance_id=row.instance_id,
        fingerprint=row.fingerprint,
        boot_id=row.boot_id,
        run=row.run,
        leaving=held.leaving if held is not None else row.leaving,
        silent_for_s=silent_for_s,
        claims=claims,
        hostname=hostname,
        last_seen_at=row.last_seen_at,
    )


def _store(tx: Tx, beat: Heartbeat, row: sa.Row[Any] | None, decision: registration.Decision) -> None:
    moment = times.to_wire(times.now())
    if decision.unbind_node is not None:
        tx.execute(sa.update(nodes).where(nodes.c.id == decision.unbind_node).values(instance_id=None, leaving=True))
    if decision.verdict not in (Verdict.REGISTER, Verdict.REPLACE):
        return  # this process did not know yet what is stored already
    identity = {
        "instance_id": beat.instance_id,
        "fingerprint": beat.fingerprint,
        "boot_id": beat.boot_id,
        "run": beat.run,
        # The beat itself is taken in after this, and must count as newer.
        "seq": max(0, beat.seq - 1),
        "leaving": False,
        "last_seen_at": moment,
        # Another instance's facts are not this one's.
        "facts": None,
        "digests": None,
    }
    if row is None:
        tx.execute(
            sa.insert(nodes).values(id=beat.node_id, state=NodeState.ONLINE.value, registered_at=moment, **identity)
        )
    else:
        tx.execute(sa.update(nodes).where(nodes.c.id == beat.node_id).values(**identity))
        if row.instance_id is not None and row.fingerprint is not None and row.fingerprint == beat.fingerprint:
            # The same machine with a new instance: what the former one had claimed is still there.
            hand_over(tx, beat.node_id, row.instance_id, beat.instance_id)
    replaced = decision.verdict is Verdict.REPLACE
    emit(
        tx,
        EventKind.NODE_REPLACED if replaced else EventKind.NODE_REGISTERED,
        node_id=beat.node_id,
        actor=f"node:{beat.node_id}",
        detail=f"Instance {beat.instance_id} holds the node id: {decision.why}.",
    )


def _held(row: sa.Row[Any]) -> Held:
    held = Held(
        node_id=row.id,
        instance_id=row.instance_id,
        fingerprint=row.fingerprint,
        boot_id=row.boot_id,
        run=row.run,
        seq=row.seq,
        leaving=row.leaving,
        state=NodeState(row.state),
        seen_wall=times.from_wire(row.last_seen_at).timestamp() if row.last_seen_at else None,
    )
    _set_cordon(held, row)
    if row.facts:
        beat = restored(row.facts, row.id, row.instance_id, row.run, row.seq)
        if beat is not None:
            held.beat = beat
            held.sections = {name: value for name in UNCHANGING if (value := getattr(beat, name)) is not None}
            held.digests = {name: value for name, value in (row.digests or {}).items() if name in held.sections}
            held.cards, _ = card_rules.advance(held.cards, observation(held), card_rules.Limits())
    return held
