"""Presence: the newest beat of every node, in memory; and who holds which node id.

A steady beat costs no database statement. What must survive is written later, in batches (see ``flush``); only
the binding of an instance to its node id is on disk before the first 200.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Row

from runtime.protocol.hardware import GpuStats
from runtime.protocol.heartbeat import Heartbeat, TaskHealth
from runtime.protocol.nodes import NodeState
from runtime.server.services import binding, cards_kept
from runtime.server.services import cards as card_rules
from runtime.server.services.backlog import Backlog, Noted
from runtime.server.services.held import Held, build_of, merge, observation
from runtime.server.services.node_view import NodeView
from runtime.server.settings import ServerSettings
from runtime.server.store.database import Database

log = logging.getLogger(__name__)

STRIPES = 64
SYNC_LAG_S = 2.0
"""How old another process's word may be when it is read here."""

Listener = Callable[[str, NodeView, Heartbeat], None]


class Presence:
    """Thread-safe. One lock for a share of the node ids; none is held while another node is looked at."""

    def __init__(self, db: Database, settings: ServerSettings) -> None:
        self._db = db
        self._settings = settings
        self._limits = card_rules.Limits(settings.card_lost_after_beats, settings.card_back_after_beats)
        self._nodes: dict[str, Held] = {}
        self._locks = tuple(threading.Lock() for _ in range(STRIPES))
        self._listeners: list[Listener] = []
        self._woken: list[Callable[[], None]] = []
        self._small_lock = threading.Lock()
        self.backlog = Backlog()
        self.started_at = time.monotonic()
        self.facts_version = 0
        """Grows when a beat brought facts that placement looks at."""

    # -- beats -----------------------------------------------------------------------------------------------

    def record(self, beat: Heartbeat) -> list[str]:
        """Take a beat in; returns the sections that the node must send in full.

        Raises the problems of ``registration.decide``. An older beat refreshes when the node was heard, and
        nothing else.
        """
        now, wall = time.monotonic(), time.time()
        node_id = beat.node_id
        with self._lock(node_id):
            held = self._nodes.get(node_id)
            if held is None or _needs_decision(held, beat):
                held = self._bind(held, beat, now)
            held.heard_at, held.seen_wall = now, wall
            known_facts = held.facts_changed
            wake = held.state is not NodeState.ONLINE or beat.leaving
            if not held.is_newer(beat):
                held.changed()
                self.backlog.add(node_id)
                return []
            before, fabrics = build_of(held.beat), held.sections.get("fabrics")
            send_full = merge(held, beat)
            beat = held.beat or beat  # with what it left out as unchanged
            cards, changes = card_rules.advance(held.cards, observation(held), self._limits)
            if cards is not held.cards:
                if cards_kept.conditions(cards) != cards_kept.conditions(held.cards):
                    held.facts_changed = True
                held.cards = cards
                held.changed()
            noted = [Noted(node_id, change) for change in changes]
            after = build_of(beat)
            if before is not None and after is not None and before != after:
                noted.append(Noted(node_id, None, f"{_build_text(before)} -> {_build_text(after)}", "build_changed"))
            if fabrics and held.sections.get("fabrics") is not fabrics:
                gone = {f.name for f in fabrics} - {f.name for f in held.sections.get("fabrics") or ()}
                noted.extend(Noted(node_id, None, f"fabric {name} is gone", "fabric_vanished") for name in sorted(gone))
            self.backlog.add(node_id, noted)
            if held.facts_changed and not known_facts:
                self._facts_moved()
                wake = True
            view = held.view()
            for listener in self._listeners:
                listener(node_id, view, beat)
        if wake or noted:
            self._wake()
        return send_full

    def on_beat(self, listener: Listener) -> None:
        """``listener(node_id, view, beat)`` runs in the request's thread after each newer beat, one beat of a
        node at a time; it must only enqueue."""
        self._listeners.append(listener)

    def on_wake(self, call: Callable[[], None]) -> None:
        """``call()`` runs when a beat changed something that the next round should not wait for."""
        self._woken.append(call)

    def is_bound(self, node_id: str, instance_id: str) -> bool:
        """Whether this process knows that ``instance_id`` holds ``node_id``; costs no statement."""
        held = self._nodes.get(node_id)
        return held is not None and held.instance_id == instance_id

    def bound_instance(self, node_id: str) -> str | None:
        """The instance that holds ``node_id``, None when nobody does."""
        held = self._nodes.get(node_id)
        if held is not None:
            return held.instance_id
        # Another process may have registered it a moment ago.
        return None if self._db.is_sqlite else binding.stored_instance(self._db, node_id)

    # -- reading ---------------------------------------------------------------------------------------------

    def view(self, node_id: str) -> NodeView | None:
        with self._lock(node_id):
            held = self._nodes.get(node_id)
            return held.view() if held is not None else None

    def views(self) -> list[NodeView]:
        """Every node, by id."""
        return [view for node_id in sorted(self._nodes) if (view := self.view(node_id)) is not None]

    def task_health(self, node_id: str) -> dict[str, TaskHealth]:
        """uid -> what the newest beat says of each claim that the node holds."""
        with self._lock(node_id):
            held = self._nodes.get(node_id)
            return held.task_health() if held is not None else {}

    def gpu_stats(self, node_id: str) -> list[GpuStats]:
        """What the node's cards measured at its newest beat."""
        held = self._nodes.get(node_id)
        beat = held.beat if held is not None else None
        return list(beat.gpu_stats or ()) if beat is not None else []

    def node_ids(self) -> list[str]:
        return list(self._nodes)

    def held(self, node_id: str) -> Held | None:
        """The record itself, for this package's own modules: use it inside :meth:`locked`."""
        return self._nodes.get(node_id)

    def locked(self, node_id: str) -> threading.Lock:
        """The lock that guards the record of ``node_id``."""
        return self._lock(node_id)

    # -- what others decide about a node ---------------------------------------------------------------------

    def set_state(self, node_id: str, state: NodeState) -> None:
        with self._changing(node_id) as held:
            if held is not None:
                held.state = state

    def reread_cordon(self, node_id: str) -> None:
        """A cordon was committed or taken back; call it after the commit (``tx.after``).

        It is read again, since two commits may come here in another order than they were made.
        """
        with self._changing(node_id) as held:
            if held is not None:
                binding.take_cordon(self._db, held)
        self._facts_moved()
        self._wake()

    def released(self, node_id: str) -> None:
        """Nobody holds the node id any more."""
        with self._changing(node_id) as held:
            if held is not None:
                held.instance_id = None

    def forget(self, node_id: str) -> None:
        """The node was deleted."""
        with self._lock(node_id):
            self._nodes.pop(node_id, None)

    # -- what the database holds -----------------------------------------------------------------------------

    def load(self) -> None:
        """Take over what the database holds of each node."""
        for held in binding.load_all(self._db):
            self.adopt(held)

    def adopt(self, held: Held) -> None:
        """Hold this record from now on."""
        with self._lock(held.node_id):
            self._nodes[held.node_id] = held

    def absorb(self, stored: Held, *, with_state: bool) -> None:
        """Take over what another process has stored of a node, as far as it is newer than what is held.

        ``with_state``: also what the leading process decided about it.
        """
        with self._lock(stored.node_id):
            held = self._nodes.get(stored.node_id)
            # It was written since the last look, whatever the other machine's clock says.
            heard_at = time.monotonic() - min(SYNC_LAG_S, max(0.0, time.time() - (stored.seen_wall or 0.0)))
            if held is not None and held.instance_id != stored.instance_id and _is_older(stored, held):
                return  # it was read before this process bound another instance
            if held is None or held.instance_id != stored.instance_id:
                stored.heard_at = heard_at if stored.instance_id is not None else None
                self._nodes[stored.node_id] = stored
                return
            held.cordon, held.draining = stored.cordon, stored.draining
            held.drain_deadline, held.drain_then = stored.drain_deadline, stored.drain_then
            if with_state:
                held.state = stored.state
            held.cloned_boots |= stored.cloned_boots
            of_copy = stored.boot_id in held.cloned_boots  # read before the copy was found out
            unmasked = held.boot_id in held.cloned_boots
            if not of_copy and (unmasked or (stored.run, stored.seq) > (held.run, held.seq)):
                if unmasked:
                    held.forget_copy()
                held.run, held.seq, held.leaving = stored.run, stored.seq, stored.leaving
                held.boot_id, held.seen_wall = stored.boot_id, stored.seen_wall
                held.heard_at = max(heard_at, held.heard_at or heard_at)
                held.cards = cards_kept.merged(held.cards, stored.cards)
                if stored.digests != held.digests:
                    held.sections, held.digests = stored.sections, stored.digests
            held.changed()

    # -- inside ----------------------------------------------------------------------------------------------

    def _bind(self, held: Held | None, beat: Heartbeat, now: float) -> Held:
        bound = binding.bind(self._db, held, beat, lambda row: self._silent_for(row, now), self._settings.lost_after_s)
        if bound.newly and held is not None:
            self._facts_moved()
        self._nodes[beat.node_id] = bound.held
        if bound.unbound is not None and bound.unbound in self._nodes:
            # Plain assignments need no second lock: two locks at once could wait for each other.
            former = self._nodes[bound.unbound]
            former.instance_id, former.leaving = None, True
            former.changed()
        return bound.held

    def _silent_for(self, row: Row[Any], now: float) -> float:
        """Seconds without a word of the node's holder. No clock of another machine is asked: what has moved since
        this process looked last was heard by another one, a moment ago."""
        held = self._nodes.get(row.id)
        if row.instance_id is not None and (
            held is None
            or held.instance_id != row.instance_id
            or (held.boot_id == row.boot_id and (row.run, row.seq) > (held.run, held.seq))
        ):
            return 0.0
        return now - max(self.started_at, (held.heard_at if held is not None else None) or self.started_at)

    def _facts_moved(self) -> None:
        with self._small_lock:
            self.facts_version += 1

    def _lock(self, node_id: str) -> threading.Lock:
        return self._locks[hash(node_id) % STRIPES]

    def _changing(self, node_id: str) -> _Changing:
        return _Changing(self, node_id)

    def _wake(self) -> None:
        for call in self._woken:
            call()


class _Changing:
    """``with`` the record of a node locked; its view is made anew afterwards."""

    def __init__(self, presence: Presence, node_id: str) -> None:
        self._lock = presence.locked(node_id)
        self._presence = presence
        self._node_id = node_id

    def __enter__(self) -> Held | None:
        self._lock.acquire()
        return self._presence.held(self._node_id)

    def __exit__(self, *_: object) -> None:
        held = self._presence.held(self._node_id)
        if held is not None:
            held.changed()
        self._lock.release()


def _needs_decision(held: Held, beat: Heartbeat) -> bool:
    """Whether a beat is anything but the holder's next one, on the machine that it was heard from before."""
    return (
        held.instance_id != beat.instance_id
        or (beat.boot_id is not None and beat.boot_id != held.boot_id)
        or beat.run < held.run
        or (beat.fingerprint is not None and held.fingerprint is None)
    )


def _is_older(stored: Held, held: Held) -> bool:
    # A release binds nobody and is no beat: it has no time of its own to compare.
    return stored.instance_id is not None and (stored.seen_wall or 0.0) < (held.seen_wall or 0.0)


def _build_text(build: tuple[object, ...]) -> str:
    version, commit, _, dirty = build
    return f"{version}/{commit}" + ("-dirty" if dirty else "")
