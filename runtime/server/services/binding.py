"""The stored side of a node's identity: binding an instance to a node id, and reading nodes back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.heartbeat import UNCHANGING, Heartbeat
from runtime.protocol.nodes import Cordon, EventKind, NodeState
from runtime.protocol.states import Status
from runtime.server.services import cards as card_rules
from runtime.server.services import cards_kept, registration
from runtime.server.services.events import emit
from runtime.server.services.held import Held, observation, restored
from runtime.server.services.registration import KnownNode, Verdict
from runtime.server.services.tasks import lifecycle
from runtime.server.services.tasks.claims import hand_over
from runtime.server.store.database import Database
from runtime.server.store.tables import nodes, tasks
from runtime.server.store.transaction import Tx

log = logging.getLogger(__name__)

CLAIMED = (Status.RUNNING.value, Status.SLEEPING.value)
"""States of tasks whose claim a node holds."""

BOOTS_KEPT = 64
"""Of each kind; a machine that boots oftener within the life of its copy is not known."""

Silence = Callable[[sa.Row[Any]], float]
"""For how many seconds this process has had no word of a stored node's holder, by the monotonic clock."""


@dataclass(frozen=True)
class Bound:
    """``unbound``: the node id that the instance gave up for this one. ``newly``: nobody or another instance held
    the node id."""

    held: Held
    unbound: str | None
    newly: bool


def bind(db: Database, held: Held | None, beat: Heartbeat, silence: Silence, lost_after_s: float) -> Bound:
    """Decide on a beat that is not plainly the holder's next, and store who holds the node id, by which boot.

    Returns when it is on disk. Raises what ``registration.decide`` raises; then nothing is stored.
    """

    def change(tx: Tx) -> tuple[sa.Row[Any], registration.Decision]:
        row = tx.execute(sa.select(nodes).where(nodes.c.id == beat.node_id).with_for_update()).first()
        other = tx.execute(
            sa.select(nodes).where(nodes.c.instance_id == beat.instance_id, nodes.c.id != beat.node_id)
        ).first()
        decision = registration.decide(
            _stored(tx, row, silence, held),
            _stored(tx, other, silence, None),
            beat,
            lost_after_s=lost_after_s,
        )
        _store(tx, beat, row, decision)
        return tx.execute(sa.select(nodes).where(nodes.c.id == beat.node_id)).one(), decision

    try:
        row, decision = db.write(change)
    except sa.exc.IntegrityError:
        # Two processes took the first beats of two agents with one new name: who was second sees the first now.
        row, decision = db.write(change)
    newly = decision.verdict in (Verdict.REGISTER, Verdict.REPLACE)
    if decision.verdict is Verdict.UNMASK:
        log.warning("node %s: its instance runs on two machines; the later one is refused", beat.node_id)
    if held is None or newly or held.instance_id != beat.instance_id:
        return Bound(held_of(row), decision.unbind_node, newly)
    held.boot_id, held.cloned_boots = row.boot_id, frozenset((row.boots or {}).get("cloned", ()))
    held.fingerprint = row.fingerprint
    if decision.verdict is Verdict.UNMASK:
        held.run, held.seq = row.run, row.seq
        held.forget_copy()
    return Bound(held, decision.unbind_node, newly)


def stored_instance(db: Database, node_id: str) -> str | None:
    with db.read() as connection:
        return connection.execute(sa.select(nodes.c.instance_id).where(nodes.c.id == node_id)).scalar()


def load_all(db: Database, since: str | None = None) -> list[Held]:
    """Every stored node (seen after ``since``, an RFC 3339 text, where given)."""
    query = sa.select(nodes)
    if since is not None:
        query = query.where(nodes.c.last_seen_at > since)
    with db.read() as connection:
        return [held_of(row) for row in connection.execute(query)]


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


def _stored(tx: Tx, row: sa.Row[Any] | None, silence: Silence, held: Held | None) -> KnownNode | None:
    """``held`` is this process's record of the node, where it is of the same instance: what it heard is newer than
    what it has written."""
    if row is None:
        return None
    if held is not None and held.instance_id != row.instance_id:
        held = None
    silent_for_s = silence(row)
    unheard_for_s = silent_for_s
    if row.last_seen_at is not None:
        unheard_for_s = max(silent_for_s, time.time() - times.from_wire(row.last_seen_at).timestamp())
    # The holder's own: those of an earlier instance are no reason to keep that one from its name.
    of_holder = (tasks.c.node_id == row.id, tasks.c.status.in_(CLAIMED), tasks.c.claim_instance == row.instance_id)
    claims = tx.execute(sa.select(sa.func.count()).select_from(tasks).where(*of_holder)).scalar_one()
    heard = held.sections.get("host") if held is not None else None
    hostname = heard.hostname if heard is not None else ((row.facts or {}).get("host") or {}).get("hostname")
    boots = row.boots or {}
    known_run = row.run
    if held is not None and held.boot_id == row.boot_id:
        known_run = max(row.run, held.run)
    return KnownNode(
        node_id=row.id,
        instance_id=row.instance_id,
        fingerprint=row.fingerprint,
        boot_id=row.boot_id,
        run=known_run,
        leaving=held.leaving if held is not None else row.leaving,
        silent_for_s=silent_for_s,
        unheard_for_s=unheard_for_s,
        claims=claims,
        hostname=hostname,
        last_seen_at=row.last_seen_at,
        former_boots=frozenset(boots.get("former", ())),
        cloned_boots=frozenset(boots.get("cloned", ())),
    )


def _store(tx: Tx, beat: Heartbeat, row: sa.Row[Any] | None, decision: registration.Decision) -> None:
    if decision.unbind_node is not None:
        _give_up(tx, decision.unbind_node, beat)
    if decision.verdict not in (Verdict.REGISTER, Verdict.REPLACE):
        assert row is not None
        _store_boot(tx, beat, row, decision.verdict)
        return
    moment = times.now()
    identity = {
        "instance_id": beat.instance_id,
        "fingerprint": beat.fingerprint,
        "boot_id": beat.boot_id,
        "boots": None,
        "run": beat.run,
        # The beat itself is taken in after this, and must count as newer.
        "seq": max(0, beat.seq - 1),
        "leaving": False,
        "last_seen_at": times.to_wire(moment),
        # Another instance's facts are not this one's.
        "facts": None,
        "digests": None,
    }
    if row is None:
        first = {"state": NodeState.ONLINE.value, "registered_at": times.to_wire(moment)}
        tx.execute(sa.insert(nodes).values(id=beat.node_id, **first, **identity))
    else:
        tx.execute(sa.update(nodes).where(nodes.c.id == beat.node_id).values(**identity))
        if decision.succeeds and row.instance_id is not None:
            hand_over(tx, beat.node_id, row.instance_id, beat.instance_id)
        lifecycle.holder_changed(tx, beat.node_id, beat.instance_id, moment)
    replaced = decision.verdict is Verdict.REPLACE
    emit(
        tx,
        EventKind.NODE_REPLACED if replaced else EventKind.NODE_REGISTERED,
        node_id=beat.node_id,
        actor=f"node:{beat.node_id}",
        detail=f"Instance {beat.instance_id} holds the node id: {decision.why}.",
    )


def _store_boot(tx: Tx, beat: Heartbeat, row: sa.Row[Any], verdict: Verdict) -> None:
    """The holder itself: what is new about its machine."""
    changed: dict[str, Any] = {}
    if row.fingerprint is None and beat.fingerprint is not None:
        changed["fingerprint"] = beat.fingerprint
    if beat.boot_id is not None and beat.boot_id != row.boot_id:
        changed["boot_id"] = beat.boot_id
    if verdict in (Verdict.REBOOTED, Verdict.UNMASK) and row.boot_id is not None:
        boots = {kind: list((row.boots or {}).get(kind, ())) for kind in ("former", "cloned")}
        boots["former"] = [boot for boot in boots["former"] if boot != beat.boot_id]
        boots["former" if verdict is Verdict.REBOOTED else "cloned"].append(row.boot_id)
        # The copy may have counted on from the same run: the true holder goes on with its own.
        run = {"run": beat.run, "seq": max(0, beat.seq - 1)}
        changed |= {"boots": {kind: kept[-BOOTS_KEPT:] for kind, kept in boots.items()}, **run}
    if verdict is Verdict.UNMASK:
        changed |= {"facts": None, "digests": None}  # they may be the copy's
    if changed:
        tx.execute(sa.update(nodes).where(nodes.c.id == row.id).values(**changed))
    if verdict is Verdict.UNMASK:
        emit(
            tx,
            EventKind.NODE_STATE,
            code="instance_cloned",
            node_id=row.id,
            actor="server",
            detail=f"Instance {row.instance_id} runs on two machines (boots {beat.boot_id} and {row.boot_id}); the one "
            "that was heard first goes on as this node.",
        )


def _give_up(tx: Tx, node_id: str, beat: Heartbeat) -> None:
    """An instance comes with another node id: nobody holds ``node_id`` any more."""
    tx.execute(sa.update(nodes).where(nodes.c.id == node_id).values(instance_id=None, leaving=True))
    emit(
        tx,
        EventKind.NODE_STATE,
        code="renamed",
        node_id=node_id,
        actor=f"node:{beat.node_id}",
        detail=f"Its agent (instance {beat.instance_id}) is node {beat.node_id} now; this one can be deleted.",
    )


def held_of(row: sa.Row[Any]) -> Held:
    """A stored node as a record in memory."""
    held = Held(
        node_id=row.id,
        instance_id=row.instance_id,
        fingerprint=row.fingerprint,
        boot_id=row.boot_id,
        cloned_boots=frozenset((row.boots or {}).get("cloned", ())),
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
            cards, _ = card_rules.advance(held.cards, observation(held), card_rules.Limits())
            held.cards = cards_kept.restored(cards, row.facts.get(cards_kept.NAME), time.time())
    return held
