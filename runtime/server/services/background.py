"""The threads of a running control plane, started and stopped in one place."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from runtime.protocol import times
from runtime.protocol.problems import Problem
from runtime.server.services import binding, history
from runtime.server.services.flush import flush
from runtime.server.services.leader import Leader
from runtime.server.services.observed import Observer
from runtime.server.services.rounds import Rounds
from runtime.server.services.ticker import Ticker

if TYPE_CHECKING:
    from runtime.server.parts import Parts

log = logging.getLogger(__name__)

EVERY_S = 1.0
RESYNC_S = 30.0
"""With several processes everything is read anew this often: what one missed is repaired."""
STOP_S = 10.0


class Background:
    """Keeps the board current, writes what was heard, runs the rounds, applies what nodes were seen doing."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._leader = Leader(parts.db)
        self._rounds = Ticker("rounds", EVERY_S, Rounds(parts, self._leader).run)
        self._keeper = Ticker("board", EVERY_S, self._keep)
        self._flusher = Ticker("flush", EVERY_S, self._flush)
        self._history = Ticker("history", history.EVERY_S, parts.history.tick)
        self._observer = Observer(parts.db, parts.presence)
        self._synced_wall = 0.0
        self._resynced_at = time.monotonic()

    def start(self) -> None:
        parts = self._parts
        parts.db.on_revision(lambda _revision: self._keeper.wake())
        parts.board.on_change(lambda _changed: self._rounds.wake())
        parts.presence.on_wake(self._rounds.wake)
        self._observer.start()
        for ticker in (self._keeper, self._flusher, self._rounds, self._history):
            ticker.start()

    def stop(self) -> None:
        """End all threads; what was heard and not yet written is written last."""
        tickers = (self._rounds, self._keeper, self._flusher, self._history)
        for ticker in tickers:
            ticker.stop()
        for ticker in tickers:
            ticker.join(STOP_S)
        self._observer.stop()
        try:
            flush(self._parts.db, self._parts.presence)
        except Problem as problem:
            # Each node says it again with its next heartbeat.
            log.warning("what nodes said last is not written: %s", problem.detail)
        self._leader.resign()

    def _keep(self, _lag_s: float) -> None:
        parts = self._parts
        if not parts.db.is_sqlite:
            if not parts.db.refresh_revision():
                self._begin_anew()
            parts.rollback.load()
            if time.monotonic() - self._resynced_at >= RESYNC_S:
                self._resynced_at = time.monotonic()
                self._synced_wall = 0.0
                parts.board.load()
            self._sync_nodes()
        elif parts.rollback.watching:
            # The operator's command works on the file beside this process.
            parts.db.refresh_revision()
            parts.rollback.load()
        before = parts.board.revision
        parts.board.refresh()
        if parts.board.revision != before:
            # A change without a node (a new task) is told to no node, and placement wants it.
            self._rounds.wake()

    def _begin_anew(self) -> None:
        """Another database was put in the place of the one that this process knew."""
        self._parts.rollback.put_back()
        self._parts.board.begin_anew()
        self._synced_wall = 0.0

    def _sync_nodes(self) -> None:
        presence, since = self._parts.presence, self._synced_wall
        self._synced_wall = time.time() - 2 * EVERY_S
        # Taken before the read: a node that is registered meanwhile is missing from it, and not deleted.
        before = presence.node_ids()
        stored = binding.load_all(self._parts.db, times.to_wire(times.from_epoch(since)) if since else None)
        for held in stored:
            presence.absorb(held, with_state=not self._leader.leading)
        if not since:
            for node_id in set(before) - {held.node_id for held in stored}:
                presence.forget(node_id)

    def _flush(self, _lag_s: float) -> None:
        flush(self._parts.db, self._parts.presence, hold_back=self._parts.rollback.active)
