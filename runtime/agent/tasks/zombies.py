"""When a server's word about a task lets its container go. In doubt it stays."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Optional

from runtime.agent.link.seen import SeenRevisions
from runtime.agent.tasks.reconcile import Server
from runtime.agent.tasks.records import Key
from runtime.protocol.heartbeat import LostRevisions
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.states import TERMINAL, Status
from runtime.protocol.tasks import Task

ASKED_EVERY_S = 60.0
PROOFS_WANTED = 3
PROOF_SPACING_S = 5.0
PROOF_LASTS_S = 600.0
SETTLED_S = 60.0


def read_task(task: Task, key: Key, node_id: str, former: Sequence[str] = ()) -> Server:
    """What the server's task says of this attempt. Pure. ``former``: names that this agent has given up; a task that
    stands under one of them has not moved, and nobody has said that its container may go."""
    if task.uid != key.uid:
        return Server.UNKNOWN  # the id was given anew; our uid was not answered about
    if task.attempt > key.attempt:
        return Server.MOVED
    if task.attempt < key.attempt:
        return Server.UNKNOWN
    if task.status in TERMINAL:
        return Server.ENDED
    if task.status in (Status.RUNNING, Status.SLEEPING):
        if task.node_id == node_id:
            return Server.OURS
        return Server.MOVED if task.node_id and task.node_id not in former else Server.UNKNOWN
    return Server.UNKNOWN


@dataclass
class _Proof:
    count: int
    at: float
    beat: int


class Deletions:
    """Counts ``task_not_found``: three of them, at least 5 s apart, with a good beat between, from the control
    plane that gave the task and at a revision that is not below the highest seen, mean deleted."""

    def __init__(self) -> None:
        self._proofs: dict[Key, _Proof] = {}

    def not_found(self, key: Key, now: float, beat: int, trusted: bool) -> bool:
        """One more ``task_not_found``; ``beat`` counts the good beats so far, ``trusted`` says that control plane
        and revision are right. Whether the task is proven deleted."""
        if not trusted:
            self._proofs.pop(key, None)
            return False
        proof = self._proofs.get(key)
        if proof is None:
            # What nobody has asked about for long is over, or was found again by another way.
            self._proofs = {known: one for known, one in self._proofs.items() if now - one.at < PROOF_LASTS_S}
            self._proofs[key] = _Proof(1, now, beat)
            return False
        if now - proof.at >= PROOF_SPACING_S and beat > proof.beat:
            proof.count, proof.at, proof.beat = proof.count + 1, now, beat
        return proof.count >= PROOFS_WANTED

    def found(self, key: Key) -> None:
        """The server knows the task: what was counted is void."""
        self._proofs.pop(key, None)


class ServerWord:
    """Who answers and how far it has come, so that its "not found" can be weighed. Safe to use from threads."""

    def __init__(self, seen: Optional[SeenRevisions] = None) -> None:
        """``seen``: the highest revision of each control plane, those of an earlier run of this agent included."""
        self._seen = seen or SeenRevisions()
        self._lock = threading.Lock()
        self._deletions = Deletions()
        self._beats = 0
        self._highest: dict[str, int] = {}
        self._trusted = False
        self._control_plane: Optional[str] = None
        self._lost: Optional[LostRevisions] = None

    @property
    def lost(self) -> Optional[LostRevisions]:
        """What the control plane's database has lost, where it was put back: until an operator has accepted that, its
        silence about a task says nothing, and what it wants of one may be long over."""
        return self._lost

    def heard(self, control_plane_id: str, revision: int, lost: Optional[LostRevisions] = None) -> None:
        """One good beat."""
        self._lost = lost
        with self._lock:
            self._beats += 1
            self._control_plane = control_plane_id
            if control_plane_id not in self._highest:
                self._highest[control_plane_id] = self._seen.highest(control_plane_id) or revision
            highest = self._highest[control_plane_id]
            self._trusted = lost is None and revision_trusted(revision, highest)
            self._highest[control_plane_id] = max(highest, revision)

    def found(self, key: Key) -> None:
        with self._lock:
            self._deletions.found(key)

    def says_deleted(self, key: Key, control_plane_id: str, problem: ProblemDocument, now: float) -> bool:
        """Whether this refusal, with those before it, proves that the task was deleted."""
        if problem.code != "task_not_found":
            return False
        return self._not_found(key, control_plane_id, problem.control_plane_id, now)

    def says_given_anew(self, key: Key, control_plane_id: str, by: Optional[str], now: float) -> bool:
        """Whether this answer of ``by`` about a task of the same id and another uid, with those before it, proves that
        ours was deleted: an id stands for one task at a time, and no uid comes again."""
        return self._not_found(key, control_plane_id, by, now)

    def _not_found(self, key: Key, control_plane_id: str, by: Optional[str], now: float) -> bool:
        with self._lock:
            by_whom = (by or self._control_plane, self._control_plane)
            trusted = self._trusted and by_whom == (control_plane_id, control_plane_id)
            return self._deletions.not_found(key, now, self._beats, trusted)


class Questions:
    """How often the server is asked about containers that no claim explains: so many a round, about each once a
    minute, or every 5 s while it is being proven deleted. For one thread at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next: dict[Key, float] = {}
        self.left = 0

    def begin(self, count: int) -> None:
        """A new round of so many."""
        now = self._clock()
        self._next = {key: moment for key, moment in self._next.items() if moment > now}
        self.left = count

    def may(self, key: Key) -> bool:
        """Whether this one is asked about now; counts."""
        if self.left <= 0 or self._next.get(key, 0.0) > self._clock():
            return False
        self.left -= 1
        return True

    def answered(self, key: Key, *, counting: bool = False) -> None:
        """``counting``: one of several answers that together prove something."""
        self._next[key] = self._clock() + (PROOF_SPACING_S if counting else ASKED_EVERY_S)

    def stop(self) -> None:
        """The server does not answer: nothing more in this round."""
        self.left = 0


def revision_trusted(revision: Optional[int], highest: int) -> bool:
    """A revision below the highest seen means a database that was put back: its "not found" proves nothing."""
    return revision is not None and revision >= highest
