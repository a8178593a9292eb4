"""The board: what each node has to know of its tasks and instructions, in memory.

A copy of every non-terminal task's few columns and of the pending instructions, loaded once and then kept up
by revision. Heartbeats are answered from it, so a beat costs a statement only when something was committed
since the last one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.heartbeat import LOGS, Follow, Intent, PendingCounts
from runtime.protocol.instructions import Channel, InstructionStatus
from runtime.protocol.states import TERMINAL, Status
from runtime.protocol.tasks import LOG_KEEP_BYTES
from runtime.server.store.database import Database
from runtime.server.store.tables import control_plane, gpu_allocations, instructions, tasks

log = logging.getLogger(__name__)

Listener = Callable[[dict[str, frozenset[str]]], None]
"""Called with node id -> channels (tasks, slices, images, files, logs) in which something is new for it."""

_TERMINAL = frozenset(status.value for status in TERMINAL)
_TASK_COLUMNS = (
    tasks.c.uid,
    tasks.c.id,
    tasks.c.node_id,
    tasks.c.status,
    tasks.c.attempt,
    tasks.c.desired,
    tasks.c.log_until,
)


@dataclass(frozen=True)
class BoardTask:
    uid: str
    task_id: str
    node_id: str | None
    status: str
    attempt: int
    desired: str
    gpus: tuple[str, ...] = ()

    def intent(self) -> Intent:
        return Intent(self.task_id, self.uid, self.attempt, self.status, self.desired, list(self.gpus) or None)


class Board:
    """Thread-safe. ``revision`` is the newest that the copy holds."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._tasks: dict[str, BoardTask] = {}
        self._by_node: dict[str, set[str]] = defaultdict(set)
        self._instructions: dict[str, tuple[str, str]] = {}
        self._pending: dict[tuple[str, str], int] = defaultdict(int)
        self._follows: dict[tuple[str, int], tuple[str, Follow, float]] = {}
        self._listeners: list[Listener] = []
        self.revision = -1
        self._versions: dict[str, int] = defaultdict(int)

    # -- keeping up ------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read everything anew."""
        self._read(-1)

    def begin_anew(self) -> None:
        """The database is another one: whatever was known of its revision is void."""
        with self._lock:
            self.revision = -1
        self._read(-1)

    def refresh(self) -> None:
        """Hold at least everything that this process knows to be committed; no statement when it does."""
        if self.revision < self._db.revision:
            self._read(self.revision)

    def forget(self, uid: str) -> None:
        """The task's row is gone; call it after the commit (``tx.after``)."""
        with self._lock:
            gone = self._tasks.pop(uid, None)
            if gone is not None and gone.node_id is not None:
                self._by_node[gone.node_id].discard(uid)
                self._versions[gone.node_id] += 1
        if gone is not None and gone.node_id is not None:
            self._tell({gone.node_id: frozenset({"tasks"})})

    # -- what a node has to know -----------------------------------------------------------------------------

    def version(self, node_id: str) -> int:
        """Grows whenever ``pending`` or ``intents`` of the node may have changed."""
        return self._versions.get(node_id, 0)

    def pending(self, node_id: str) -> PendingCounts:
        with self._lock:
            waiting = sum(
                1 for uid in self._by_node.get(node_id, ()) if self._tasks[uid].status == Status.SCHEDULED.value
            )
            counts = {channel.plural: self._pending.get((node_id, channel.value), 0) for channel in Channel}
        return PendingCounts(tasks=waiting, **counts)

    def intents(self, node_id: str) -> list[Intent]:
        """Every non-terminal task that the node holds, oldest id first."""
        with self._lock:
            held = [self._tasks[uid] for uid in self._by_node.get(node_id, ())]
        return [task.intent() for task in sorted(held, key=lambda task: task.task_id)]

    def task(self, uid: str) -> BoardTask | None:
        """A non-terminal task, None when there is none of this uid."""
        return self._tasks.get(uid)

    def counts(self) -> dict[str, int]:
        """Non-terminal status -> number of tasks."""
        with self._lock:
            found: dict[str, int] = defaultdict(int)
            for task in self._tasks.values():
                found[task.status] += 1
        return dict(found)

    def instructions_wait(self) -> bool:
        """Whether any instruction waits for its node."""
        return bool(self._instructions)

    # -- logs that somebody reads ----------------------------------------------------------------------------

    def want_logs(self, uid: str, until: str) -> None:
        """Somebody follows this task's log until ``until`` (RFC 3339): the node is told so."""
        with self._lock:
            task = self._tasks.get(uid)
            fresh = task is not None and self._want_logs(task, until)
        if task is not None and task.node_id is not None and fresh:
            self._tell({task.node_id: frozenset({LOGS})})

    def _want_logs(self, task: BoardTask, until: str) -> bool:
        """Whether it was not followed before."""
        lasts_s = (times.from_wire(until) - times.now()).total_seconds()
        if task.node_id is None or lasts_s <= 0:
            return False
        key = (task.task_id, task.attempt)
        fresh = key not in self._follows
        follow = Follow(task.task_id, task.attempt, LOG_KEEP_BYTES, until)
        self._follows[key] = (task.node_id, follow, time.monotonic() + lasts_s)
        return fresh

    def follow(self, node_id: str) -> list[Follow]:
        """The logs of this node that somebody reads now."""
        if not self._follows:
            return []
        now = time.monotonic()
        with self._lock:
            for key in [key for key, (_, _, ends) in self._follows.items() if ends <= now]:
                del self._follows[key]
            return [follow for holder, follow, _ in self._follows.values() if holder == node_id]

    # -- telling others --------------------------------------------------------------------------------------

    def on_change(self, listener: Listener) -> None:
        """``listener`` runs after a refresh, in the refreshing thread; it must only wake somebody else."""
        self._listeners.append(listener)

    def _tell(self, changed: dict[str, frozenset[str]]) -> None:
        if changed:
            for listener in self._listeners:
                listener(changed)

    # -- inside ----------------------------------------------------------------------------------------------

    def _read(self, after: int) -> None:
        with self._loading:
            if after >= 0 and self.revision >= self._db.revision:
                return  # somebody else has just read it
            after = self.revision if after >= 0 else -1
            with self._db.read() as connection:
                # Read first: a row committed in between is read twice, none is missed.
                revision = connection.execute(sa.select(control_plane.c.revision)).scalar_one()
                query = sa.select(*_TASK_COLUMNS)
                query = query.where(tasks.c.revision > after) if after >= 0 else query.where(_ALIVE)
                rows = connection.execute(query).all()
                cards = _cards(connection, [row.uid for row in rows], everything=after < 0)
                wanted = sa.select(instructions.c.id, instructions.c.node_id, instructions.c.channel)
                pending = instructions.c.status == InstructionStatus.PENDING.value
                if after >= 0:
                    changed_rows = connection.execute(
                        wanted.add_columns(pending.label("waits")).where(instructions.c.revision > after)
                    ).all()
                else:
                    changed_rows = connection.execute(wanted.add_columns(sa.true().label("waits")).where(pending)).all()
            with self._lock:
                if after < 0:
                    self._forget_all({row.uid for row in rows}, {row.id for row in changed_rows})
                changed: dict[str, set[str]] = defaultdict(set)
                for row in rows:
                    self._take(row, cards.get((row.uid, row.attempt), ()), changed)
                for row in changed_rows:
                    self._take_instruction(row, changed)
                for node_id in changed:
                    self._versions[node_id] += 1
                self.revision = max(self.revision, revision)
            self._db.note_revision(revision)
        self._tell({node_id: frozenset(channels) for node_id, channels in changed.items()})

    def _forget_all(self, uids: set[str], instruction_ids: set[str]) -> None:
        for uid in [uid for uid in self._tasks if uid not in uids]:
            node_id = self._tasks.pop(uid).node_id
            if node_id is not None:
                self._by_node[node_id].discard(uid)
                self._versions[node_id] += 1
        for key in [key for key in self._instructions if key not in instruction_ids]:
            node_id, channel = self._instructions.pop(key)
            self._pending[(node_id, channel)] -= 1
            self._versions[node_id] += 1

    def _take(self, row: Any, cards: tuple[str, ...], changed: dict[str, set[str]]) -> None:
        task = BoardTask(row.uid, row.id, row.node_id, row.status, row.attempt, row.desired, cards)
        if row.log_until is not None and task.status not in _TERMINAL and self._want_logs(task, row.log_until):
            changed[str(task.node_id)].add(LOGS)
        before = self._tasks.get(task.uid)
        if before == task:
            return
        if before is not None and before.node_id is not None:
            self._by_node[before.node_id].discard(task.uid)
            changed[before.node_id].add("tasks")
        if task.status in _TERMINAL:
            self._tasks.pop(task.uid, None)
            return
        self._tasks[task.uid] = task
        if task.node_id is not None:
            self._by_node[task.node_id].add(task.uid)
            changed[task.node_id].add("tasks")

    def _take_instruction(self, row: Any, changed: dict[str, set[str]]) -> None:
        known = row.id in self._instructions
        if row.waits and not known:
            self._instructions[row.id] = (row.node_id, row.channel)
            self._pending[(row.node_id, row.channel)] += 1
        elif not row.waits and known:
            del self._instructions[row.id]
            self._pending[(row.node_id, row.channel)] -= 1
        else:
            return
        changed[row.node_id].add(Channel(row.channel).plural)


_ALIVE = tasks.c.status.not_in(sorted(_TERMINAL))


def _cards(
    connection: sa.Connection, uids: Iterable[str], *, everything: bool
) -> dict[tuple[str, int], tuple[str, ...]]:
    """(uid, attempt) -> the cards it holds."""
    query = sa.select(gpu_allocations.c.uid, gpu_allocations.c.attempt, gpu_allocations.c.gpu_uuid)
    if not everything:
        wanted = sorted(uids)
        if not wanted:
            return {}
        query = query.where(gpu_allocations.c.uid.in_(wanted))
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for row in connection.execute(query.order_by(gpu_allocations.c.gpu_uuid)):
        found[(row.uid, row.attempt)].append(row.gpu_uuid)
    return {key: tuple(cards) for key, cards in found.items()}
