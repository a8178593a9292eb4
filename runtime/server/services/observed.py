"""What heartbeats say of tasks, turned into events and facts: phases, starts, stalls, cards that are free.

The listener runs in every beat's request, so it only compares the beat with the one before and queues what is
new; a worker writes it. A steady beat costs no statement.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from runtime.protocol.heartbeat import Heartbeat
from runtime.protocol.problems import Problem
from runtime.protocol.states import Phase
from runtime.server.services.node_view import NodeView
from runtime.server.services.tasks import sightings
from runtime.server.services.tasks.sightings import Change, Holder
from runtime.server.store.database import Database

log = logging.getLogger(__name__)

STALL_BEATS = 3
STALL_GRACE_S = 60.0
"""A task is stalled when its container was missing in so many beats in a row, this long after it ran first."""
GONE_BEATS = 2
"""A holder is gone when so many beats in a row do not know it: one may have been on its way before the claim."""
RETRY_S = 2.0

STARTED = frozenset({Phase.LOADING.value, Phase.RUNNING.value})


class Listening(Protocol):
    def on_beat(self, listener: Callable[[str, NodeView, Heartbeat], None]) -> None: ...


@dataclass
class Watched:
    """One claim of a node, as its beats show it. Times on the monotonic clock."""

    task_id: str
    phase: str
    running_since: float | None = None
    missing: int = 0
    stalled: bool = False


@dataclass
class _Node:
    claims: dict[Holder, Watched] = field(default_factory=dict)
    absent: dict[Holder, int] = field(default_factory=lambda: defaultdict(int))


class Observer:
    """Register with ``presence.on_beat``; ``start`` and ``stop`` its worker."""

    def __init__(self, db: Database, presence: Listening, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._nodes: dict[str, _Node] = defaultdict(_Node)
        self._releasing: dict[str, frozenset[Holder]] = {}
        self._stalled_before: set[tuple[str, Holder]] = set()
        self._started = False
        self._changes: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._stopping = threading.Event()
        self._refresh = threading.Event()
        presence.on_beat(self.beat)
        db.on_revision(self._note_revision)

    def start(self) -> None:
        self._stopping.clear()
        # Whoever sets the flag rings as well: a worker that is not woken would never look at it.
        self._refresh.set()
        self._changes.put(_NOTHING)
        self._worker = threading.Thread(target=self._work, name="observer", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Write what is queued, and end."""
        self._stopping.set()
        self._changes.put(None)
        if self._worker is not None:
            self._worker.join(10)
            self._worker = None

    # -- in the request's thread -----------------------------------------------------------------------------

    def beat(self, node_id: str, view: NodeView, beat: Heartbeat) -> None:
        """Compare a newer beat with the one before. Two beats of one node never come here at once."""
        # After a start of the server what is there already is no news.
        first = node_id not in self._nodes
        node = self._nodes[node_id]
        if beat.task_health is not None:
            self._compare(node_id, node, beat, news=not first)
        releasing = self._releasing.get(node_id)
        if releasing and view.live_task_ids is not None and beat.task_health is not None:
            self._look_for_gone(node_id, node, releasing, view.live_task_ids, beat)

    def _compare(self, node_id: str, node: _Node, beat: Heartbeat, *, news: bool) -> None:
        moment = self._clock()
        claims: dict[Holder, Watched] = {}
        live = beat.live_task_ids
        for health in beat.task_health or ():
            holder = (health.uid, health.attempt)
            watched = node.claims.get(holder)
            if watched is None or watched.phase != health.phase:
                before = watched.phase if watched is not None else None
                since, stalled = (watched.running_since, watched.stalled) if watched is not None else (None, False)
                watched = Watched(health.task_id, health.phase, since, stalled=stalled)
                if news:
                    self._tell("phase", node_id, holder, health.task_id, health.phase, health.detail)
                if health.phase in STARTED and before not in STARTED:
                    self._tell("started", node_id, holder, health.task_id)
            claims[holder] = watched
            if live is not None:
                self._look_for_stall(node_id, holder, watched, health.task_id in live, moment)
        node.claims = claims

    def _look_for_stall(self, node_id: str, holder: Holder, watched: Watched, alive: bool, moment: float) -> None:
        if watched.phase != Phase.RUNNING.value:
            watched.running_since, watched.missing = None, 0
            return
        if watched.running_since is None:
            watched.running_since = moment
        if alive:
            watched.missing = 0
            if watched.stalled or (node_id, holder) in self._stalled_before:
                watched.stalled = False
                self._stalled_before.discard((node_id, holder))
                self._tell("recovered", node_id, holder, watched.task_id)
            return
        watched.missing += 1
        if not watched.stalled and watched.missing >= STALL_BEATS and moment - watched.running_since >= STALL_GRACE_S:
            watched.stalled = True
            self._tell("stalled", node_id, holder, watched.task_id)

    def _look_for_gone(
        self, node_id: str, node: _Node, releasing: frozenset[Holder], live: frozenset[str], beat: Heartbeat
    ) -> None:
        listed = {(entry.uid, entry.attempt) for entry in beat.orphans or ()}
        held_ids = {watched.task_id for watched in node.claims.values()}
        # A live container that no claim explains may be anybody's: then nothing is said to be gone.
        unexplained = bool(live - held_ids)
        for holder in releasing:
            if unexplained or holder in node.claims or holder in listed:
                node.absent.pop(holder, None)
                continue
            node.absent[holder] += 1
            if node.absent[holder] == GONE_BEATS:
                self._tell("gone", node_id, holder)
        for holder in [holder for holder in node.absent if holder not in releasing]:
            del node.absent[holder]

    def _tell(
        self,
        what: str,
        node_id: str,
        holder: Holder,
        task_id: str | None = None,
        phase: str | None = None,
        detail: str | None = None,
    ) -> None:
        self._changes.put(Change(what, node_id, holder, task_id, phase, detail))

    # -- the worker ------------------------------------------------------------------------------------------

    def _note_revision(self, _revision: int) -> None:
        if not self._refresh.is_set():
            self._refresh.set()
            self._changes.put(_NOTHING)

    def _work(self) -> None:
        while True:
            change = self._changes.get()
            batch: list[Change] = []
            last = change is None
            while change is not None:
                if change is not _NOTHING:
                    batch.append(change)
                try:
                    change = self._changes.get_nowait()
                except queue.Empty:
                    break
                last = last or change is None
            self._write(batch)
            if last:
                return

    def _write(self, batch: list[Change]) -> None:
        while True:
            try:
                if not self._started:
                    self._stalled_before, self._started = sightings.stalled(self._db), True
                while batch:
                    batch = batch[self._write_share(batch) :]
                if self._refresh.is_set():
                    self._refresh.clear()
                    self._releasing = sightings.releasing(self._db)
                return
            except Problem as problem:
                log.warning("what beats said of tasks is not written yet: %s", problem.detail)
                self._refresh.set()
            if self._stopping.wait(RETRY_S):
                return

    def _write_share(self, batch: list[Change]) -> int:
        """Write the first changes of ``batch``, as many as the database takes at once; how many are done with.

        What it refuses for its content is looked for by halves and left out, alone.
        """
        try:
            self._db.write(functools.partial(sightings.write, batch=batch))
        except Problem:
            raise
        except Exception as error:
            if len(batch) > 1:
                return self._write_share(batch[: len(batch) // 2])
            change, reason = batch[0], str(error).splitlines()[0]
            log.error("node %s: the database refuses %s of a task: %s", change.node_id, change.what, reason)
        return len(batch)


_NOTHING = Change("nothing", "", ("", 0))
