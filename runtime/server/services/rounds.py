"""The round: once a second, and at once when something changed, the leading process looks at the fleet.

Node states first, with the brake; then drains that are over; then claims that nobody took; then placement.
A round over a quiet fleet costs no statement.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.nodes import EventKind, NodeState
from runtime.protocol.states import Status
from runtime.server.services import brake as brake_rules
from runtime.server.services import drains, instructions, node_states, retention
from runtime.server.services.events import emit
from runtime.server.services.leader import Leader
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement.round import place
from runtime.server.services.tasks import lifecycle
from runtime.server.store.tables import nodes
from runtime.server.store.transaction import Tx

if TYPE_CHECKING:
    from runtime.server.parts import Parts

log = logging.getLogger(__name__)

PLACE_AT_LEAST_EVERY_S = 5.0
LONG_PLACEMENT_S = 0.1
PRUNE_EVERY_S = 3600.0
UNHEARD_BEATS = 4
"""How long after its start the server waits for the nodes that were online: an agent that finds no server asks again
within so many intervals. Until then nothing is placed. Whether the database was put back is told by their beats."""
WIPE_EVERY_S = 10.0
"""Copies of wiped secrets are gone from SQLite's log within about this long."""
CHUNK = 200
"""Transitions that share a transaction: a fleet that comes back together is not one commit a node."""


@dataclass(frozen=True)
class Transition:
    node_id: str
    before: NodeState
    after: NodeState


class Rounds:
    """Called by one thread."""

    def __init__(self, parts: Parts, leader: Leader) -> None:
        self._parts = parts
        self._leader = leader
        settings = parts.settings
        self._limits = node_states.Limits(settings.unreachable_after_s, settings.lost_after_s, settings.offline_grace_s)
        self._released_at: float | None = None
        self._clock_offset: float | None = None
        self._database_lag_s = 0.0
        self._placed_at = 0.0
        self._place_again_at = 0.0
        self._placed_seen = (-1, -1)
        self._swept_at = 0.0
        self._wiped_at = 0.0
        self._pruned_at = -PRUNE_EVERY_S  # at the first round, also on a machine that was just started

    def run(self, lag_s: float) -> None:
        """One round. ``lag_s`` is how late it comes."""
        if not self._leader.leads():
            return
        now = time.monotonic()
        self._set_brake(now, lag_s)
        changed = self._states(now)
        if now - self._wiped_at >= WIPE_EVERY_S:
            self._wiped_at = now
            self._parts.db.forget_wiped()
        if self._parts.rollback.active:
            return
        drains.finish(self._parts.db, self._parts.presence, self._parts.board, times.now())
        self._sweep(now)
        self._place(now, changed)
        if now - self._pruned_at >= PRUNE_EVERY_S:
            self._pruned_at = now
            retention.prune(self._parts.db, times.now(), self._parts.settings.retention_days)

    # -- the server's doubt in itself ------------------------------------------------------------------------

    def _set_brake(self, now: float, lag_s: float) -> None:
        parts, settings = self._parts, self._parts.settings
        offset = time.time() - now
        jump = 0.0 if self._clock_offset is None else offset - self._clock_offset
        self._clock_offset = offset
        # A lag is a doubt for one round: letting go starts the counting anew, and a quiet fleet brings no newer one.
        database_lag, self._database_lag_s = self._database_lag_s, 0.0
        silences = []
        for node_id in parts.presence.node_ids():
            held = parts.presence.held(node_id)
            if held is None or held.leaving or held.state in (NodeState.LOST, NodeState.OFFLINE):
                continue
            heard_at = max(parts.started_at, held.heard_at or parts.started_at)
            silences.append(brake_rules.NodeSilence(heard_at, now - heard_at >= settings.unreachable_after_s))
        brake = brake_rules.decide(
            silences,
            brake_rules.Self(now - parts.started_at, lag_s, database_lag, jump),
            grace_s=settings.start_grace_s,
            fraction=settings.brake_fraction,
            at_least=settings.brake_min_nodes,
        )
        before, parts.brake = parts.brake, brake
        if before.on and not brake.on:
            self._released_at = now
        if before.on != brake.on:
            code = "on" if brake.on else "off"
            text = f"Nothing is given up: {brake.text}." if brake.on else "The cause is gone; nodes are judged again."
            log.warning("brake %s: %s", code, text)
            parts.db.write(lambda tx: emit(tx, EventKind.BRAKE, code=code, actor="server", detail=text))

    # -- node states -----------------------------------------------------------------------------------------

    def _states(self, now: float) -> bool:
        parts = self._parts
        reference = node_states.Reference(
            started_at=parts.started_at,
            grace_until=parts.started_at + parts.settings.start_grace_s,
            released_at=self._released_at,
            braked=parts.brake.on or parts.rollback.active,
        )
        found: list[Transition] = []
        for node_id in parts.presence.node_ids():
            held = parts.presence.held(node_id)
            if held is None:
                continue
            heard = node_states.Heard(held.heard_at, held.leaving)
            state = node_states.decide(held.state, heard, now, self._limits, reference)
            if state is not held.state:
                found.append(Transition(node_id, held.state, state))
        for start in range(0, len(found), CHUNK):
            self._store(found[start : start + CHUNK])
        return bool(found)

    def _store(self, transitions: Sequence[Transition]) -> None:
        began = time.monotonic()
        self._parts.db.write(lambda tx: _write_transitions(tx, transitions))
        self._database_lag_s = time.monotonic() - began
        for transition in transitions:
            self._parts.presence.set_state(transition.node_id, transition.after)
            log.info("node %s: %s -> %s", transition.node_id, transition.before.value, transition.after.value)

    # -- work ------------------------------------------------------------------------------------------------

    def _sweep(self, now: float) -> None:
        parts = self._parts
        if now - self._swept_at < PLACE_AT_LEAST_EVERY_S:
            return
        self._swept_at = now
        moment = times.now()
        if parts.board.counts().get(Status.SCHEDULED.value):
            # While the server was away nobody could claim: that time does not count.
            since = moment - timedelta(seconds=now - parts.started_at)
            overdue_s = parts.settings.claim_overdue_s
            lifecycle.sweep_overdue_claims(parts.db, moment, parts.presence.views(), overdue_s, since)
        if parts.board.instructions_wait():
            parts.db.write(lambda tx: instructions.expire(tx, moment))

    def _place(self, now: float, changed: bool) -> None:
        parts = self._parts
        parts.board.refresh()
        counts = parts.board.counts()
        if not counts.get(Status.PENDING.value) and not counts.get(Status.SLEEPING.value):
            return
        seen = (parts.board.revision, parts.presence.facts_version)
        if not changed and seen == self._placed_seen and now - self._placed_at < PLACE_AT_LEAST_EVERY_S:
            return
        if now < self._place_again_at:
            return
        views = self._heard_views(now)
        if views is None:
            return
        self._placed_at, self._placed_seen = now, seen
        with parts.metrics.placement_seconds.time():
            place(parts.db, views, times.now(), parts.settings)
        took = time.monotonic() - now
        if took >= LONG_PLACEMENT_S:
            # Thousands wait: looking at all of them after every change would leave no time for requests.
            self._place_again_at = time.monotonic() + 4 * took

    def _heard_views(self, now: float) -> list[NodeView] | None:
        """The nodes that may be given work: those that have spoken to this server since its start, and whose word on a
        restored database is not waited for. None: too few have spoken yet."""
        parts = self._parts
        early = now - parts.started_at < UNHEARD_BEATS * parts.settings.heartbeat_interval_s
        views = []
        for view in parts.presence.views():
            held = parts.presence.held(view.node_id)
            if held is None or held.heard_at is None or not held.tells_of(parts.db.control_plane_id):
                if early and view.state is NodeState.ONLINE:
                    return None
            elif not parts.rollback.unsettled(view.node_id):
                views.append(view)
        return views


def _write_transitions(tx: Tx, transitions: Sequence[Transition]) -> None:
    now = times.now()
    for transition in transitions:
        tx.execute(sa.update(nodes).where(nodes.c.id == transition.node_id).values(state=transition.after.value))
        emit(
            tx,
            EventKind.NODE_STATE,
            code=transition.after.value,
            node_id=transition.node_id,
            actor="server",
            detail=f"{transition.before.value} -> {transition.after.value}",
        )
        if transition.after is NodeState.LOST:
            lifecycle.node_lost(tx, transition.node_id, now)
        elif transition.after is NodeState.OFFLINE:
            lifecycle.node_left(tx, transition.node_id)
        elif transition.after is NodeState.ONLINE and transition.before is NodeState.LOST:
            lifecycle.node_returned(tx, transition.node_id)
