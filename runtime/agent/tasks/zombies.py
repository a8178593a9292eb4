"""When a server's word about a task lets its container go. In doubt it stays."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Optional

from runtime.agent.tasks.reconcile import Server
from runtime.agent.tasks.records import Key
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.states import TERMINAL, Status
from runtime.protocol.tasks import Task

PROOFS_WANTED = 3
PROOF_SPACING_S = 5.0
SETTLED_S = 60.0


def read_task(task: Task, key: Key, node_id: str) -> Server:
    """What the server's task says of this attempt. Pure."""
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
        return Server.MOVED if task.node_id else Server.UNKNOWN
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

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deletions = Deletions()
        self._beats = 0
        self._highest = 0
        self._trusted = False
        self._control_plane: Optional[str] = None

    def heard(self, control_plane_id: str, revision: int) -> None:
        """One good beat."""
        with self._lock:
            self._beats += 1
            if control_plane_id != self._control_plane:
                self._control_plane, self._highest = control_plane_id, revision
            self._trusted = revision_trusted(revision, self._highest)
            self._highest = max(self._highest, revision)

    def found(self, key: Key) -> None:
        with self._lock:
            self._deletions.found(key)

    def says_deleted(self, key: Key, control_plane_id: str, problem: ProblemDocument, now: float) -> bool:
        """Whether this refusal, with those before it, proves that the task was deleted."""
        if problem.code != "task_not_found":
            return False
        with self._lock:
            by_whom = (problem.control_plane_id or self._control_plane, self._control_plane)
            trusted = self._trusted and by_whom == (control_plane_id, control_plane_id)
            return self._deletions.not_found(key, now, self._beats, trusted)


def revision_trusted(revision: Optional[int], highest: int) -> bool:
    """A revision below the highest seen means a database that was put back: its "not found" proves nothing."""
    return revision is not None and revision >= highest
