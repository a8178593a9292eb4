"""Noticing that the database was put back, and remembering what nodes tell of the time that it has lost.

An agent has seen a revision that this database never reached, or this very process has. Then nothing is placed and
nothing is given up, until an operator says what is true (``services/restore``). A node that was not heard before that
keeps its word: its own unknown tasks are not taken for deleted when it comes back, until it was asked, too.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import threading
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.codec import encode
from runtime.protocol.heartbeat import Foreign, Heartbeat, LostRevisions
from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import Problem
from runtime.server.services import events
from runtime.server.store.database import Database
from runtime.server.store.tables import control_plane, orphans, witnesses
from runtime.server.store.transaction import Tx

log = logging.getLogger(__name__)

LONGEST_UID = 36
HIGHEST_ATTEMPT = 2**31 - 1


class Rollback:
    """``since`` is when it was noticed (RFC 3339), None in the ordinary state. Safe to use from threads."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self.since: str | None = None
        self._lost_from: int | None = None
        self._spans: tuple[tuple[int, int, frozenset[str]], ...] = ()
        self._late: dict[str, LostRevisions] = {}
        self._stored: dict[str, str] = {}

    @property
    def active(self) -> bool:
        return self.since is not None

    @property
    def text(self) -> str:
        """For people; empty in the ordinary state."""
        if self.since is not None:
            return (
                f"The database was put back (noticed {self.since}): it knows nothing above revision {self._lost_from}. "
                "Nothing is placed and nothing is given up until `heterofleet server accept-restore` was run on the "
                "control plane's machine."
            )
        if self._late:
            return (
                f"{len(self._late)} node(s) lived in the time that the restored database has lost and were not heard "
                f"before that was accepted ({', '.join(sorted(self._late)[:20])}): run `heterofleet server "
                "accept-restore` again."
            )
        return ""

    @property
    def watching(self) -> bool:
        """Whether an operator's command may end something here: then the database is looked at."""
        return self.active or bool(self._late)

    def unsettled(self, node_id: str) -> bool:
        """Whether a task of this node that the database does not hold may well exist."""
        return self.active or node_id in self._late

    def lost_for(self, node_id: str) -> LostRevisions | None:
        """What the node is asked about."""
        if self.since is not None:
            return LostRevisions(self._lost_from or 0)
        return self._late.get(node_id)

    def load(self) -> None:
        """Take over what the database says."""
        plane = sa.select(control_plane.c.rolled_back_since, control_plane.c.lost_from, control_plane.c.lost_spans)
        with self._lock, self._db.read() as connection:
            row = connection.execute(plane).one()
            found = connection.execute(sa.select(witnesses)).all()
            if row.rolled_back_since != self.since:
                self._stored.clear()
            self._lost_from = row.lost_from
            self._spans = tuple((start, end, frozenset(settled)) for start, end, settled in row.lost_spans or ())
            late = {one.node_id: LostRevisions(one.lost_from, one.lost_to) for one in found if one.lost_to is not None}
            for node_id in self._late.keys() - late.keys():
                self._stored.pop(node_id, None)
            self._late = late
            self.since = row.rolled_back_since

    def put_back(self) -> None:
        """This process itself has seen more than its database holds now."""
        control_plane_id, seen = self._db.control_plane_id, self._db.revision
        self._db.begin_anew()
        if self._db.control_plane_id != control_plane_id:
            log.error("the database is another control plane's now: %s", self._db.control_plane_id)
            return  # it has lost nothing: it never held it
        with self._lock:
            if self.since is None:
                self._begin(None, seen)

    def heard(self, beat: Heartbeat) -> None:
        """A node says which revision it has seen, and of which control plane: another's says nothing here."""
        seen = beat.seen_revision
        if seen is None or beat.seen_control_plane_id not in (None, self._db.control_plane_id):
            return
        if seen <= self._db.revision:
            if self._spans and not self.active:
                self._lived_in_lost_time(beat.node_id, seen)
            return
        with self._lock:
            if self.since is not None:
                return
            self._db.refresh_revision()  # another process may have committed it
            if seen <= self._db.revision:
                return
            self._begin(beat.node_id, seen)

    def take(self, beat: Heartbeat) -> None:
        """Keep what a node (its beat was accepted) tells of the lost time. A write only where that is new."""
        node_id = beat.node_id
        if not self.unsettled(node_id):
            return
        entries = {(one.uid, one.attempt): one for one in _named(beat) if _can_be_kept(one)}
        claims = sorted([health.uid, health.attempt] for health in beat.task_health or ())
        lost = self.lost_for(node_id) or LostRevisions(0)
        told = beat.orphans is not None and beat.task_health is not None
        values = {
            "instance_id": beat.instance_id,
            "complete": told and beat.told_from is not None and beat.told_from <= lost.start,
            "claims": claims if beat.task_health is not None else None,
        }
        rows = [encode(one, drop_none=True) for one in entries.values()]
        digest = hashlib.sha256(json.dumps([values, told, rows], sort_keys=True).encode()).hexdigest()
        if self._stored.get(node_id) == digest:
            return
        try:
            self._db.write(functools.partial(_keep, beat=beat, lost=lost, told=told, values=values, rows=rows))
        except Problem as problem:
            log.warning("node %s: what it tells of the lost time is not stored yet: %s", node_id, problem.detail)
            return
        self._stored[node_id] = digest

    # -- inside ----------------------------------------------------------------------------------------------

    def _begin(self, node_id: str | None, seen: int) -> None:
        own = self._db.started_revision
        since, lost_from = self._db.write(functools.partial(_enter, node_id=node_id, seen=seen, own=own))
        self._stored.clear()
        self._lost_from, self.since = lost_from, since
        log.error("%s", self.text)

    def _lived_in_lost_time(self, node_id: str, seen: int) -> None:
        """A node that comes late: it has seen what an accepted restore had lost."""
        span = next((span for span in self._spans if span[0] < seen < span[1]), None)
        if span is None or node_id in span[2] or node_id in self._late:
            return
        with self._lock:
            if node_id in self._late:
                return
            lost = LostRevisions(span[0], span[1])
            self._db.write(functools.partial(_enter_late, node_id=node_id, seen=seen, lost=lost))
            self._late = {**self._late, node_id: lost}
            log.error("%s", self.text)


def refuse_claims(tx: Tx) -> None:
    """Nothing is handed out while the database is known to be put back. Raises Problem database_rolled_back."""
    if is_rolled_back(tx):
        raise Problem(
            "database_rolled_back",
            "The control plane's database was put back: this task may have run since, so nobody may start it until an "
            "operator has accepted it.",
        )


def is_rolled_back(tx: Tx) -> bool:
    """Whether the database is known to be put back, in this transaction."""
    return tx.execute(sa.select(control_plane.c.rolled_back_since)).scalar() is not None


def is_unsettled(tx: Tx, node_id: str) -> bool:
    """Whether this node's word on the lost time is not accepted yet, in this transaction."""
    witness = sa.select(witnesses.c.node_id).where(witnesses.c.node_id == node_id)
    return is_rolled_back(tx) or tx.execute(witness).first() is not None


def _named(beat: Heartbeat) -> list[Foreign]:
    """Its orphans; one that lacks uid or attempt has those of the claim on its task."""
    claims = {health.task_id: health for health in beat.task_health or ()}
    found = []
    for entry in beat.orphans or ():
        claim = claims.get(entry.task_id or "")
        if claim is not None and (entry.uid is None or entry.attempt is None):
            entry = replace(entry, uid=claim.uid, attempt=claim.attempt)
        found.append(entry)
    return found


def _can_be_kept(entry: Foreign) -> bool:
    return (
        entry.uid is not None
        and 0 < len(entry.uid) <= LONGEST_UID
        and entry.attempt is not None
        and 0 <= entry.attempt <= HIGHEST_ATTEMPT
    )


def _enter(tx: Tx, node_id: str | None, seen: int, own: int) -> tuple[str, int]:
    row = tx.execute(sa.select(control_plane).with_for_update()).one()
    if row.rolled_back_since is not None:
        return str(row.rolled_back_since), int(row.lost_from or 0)
    moment = times.to_wire(times.now())
    lost_from = min(own, row.revision)
    tx.execute(sa.update(control_plane).values(rolled_back_since=moment, lost_from=lost_from))
    # Of an earlier restore: whoever is still waited for is asked about all of it now.
    tx.execute(sa.delete(witnesses))
    tx.execute(sa.delete(orphans))
    who = f"Node {node_id}" if node_id is not None else "This server"
    events.emit(
        tx,
        EventKind.DATABASE_ROLLED_BACK,
        code="entered",
        node_id=node_id,
        actor="server",
        detail=f"{who} has seen revision {seen}; this database is at {row.revision}.",
    )
    events.leap(tx)
    return moment, lost_from


def _enter_late(tx: Tx, node_id: str, seen: int, lost: LostRevisions) -> None:
    if tx.execute(sa.select(witnesses.c.node_id).where(witnesses.c.node_id == node_id)).first() is not None:
        return
    tx.execute(
        sa.insert(witnesses).values(
            node_id=node_id,
            seen_revision=seen,
            lost_from=lost.start,
            lost_to=lost.end,
            heard_at=times.to_wire(times.now()),
        )
    )
    events.emit(
        tx,
        EventKind.DATABASE_ROLLED_BACK,
        code="late_node",
        node_id=node_id,
        actor="server",
        detail=f"Node {node_id} has seen revision {seen}, which the restored database has lost, and was not heard "
        "before that was accepted.",
    )


def _keep(
    tx: Tx, beat: Heartbeat, lost: LostRevisions, told: bool, values: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    node_id, moment = beat.node_id, times.to_wire(times.now())
    mine = witnesses.c.node_id == node_id
    row = tx.execute(sa.select(witnesses).where(mine).with_for_update()).first()
    if not is_rolled_back(tx) and row is None:
        return  # it was accepted meanwhile
    seen = max(beat.seen_revision or 0, row.seen_revision if row is not None else 0)
    facts = {**values, "seen_revision": seen, "told_at": moment if told else None}
    if row is None:
        whole = {**facts, "node_id": node_id, "lost_from": lost.start, "lost_to": lost.end, "heard_at": moment}
        tx.execute(sa.insert(witnesses).values(**whole))
    else:
        tx.execute(sa.update(witnesses).where(mine).values(**facts))
    if told:
        tx.execute(sa.delete(orphans).where(orphans.c.node_id == node_id))
        for facts_of_one in rows:
            key = {"node_id": node_id, "uid": facts_of_one["uid"], "attempt": facts_of_one["attempt"]}
            tx.execute(sa.insert(orphans).values(**key, facts=facts_of_one))
