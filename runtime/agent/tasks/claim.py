"""Taking a task: one compare-and-set, asked again with the same token until its outcome is known."""

from __future__ import annotations

import secrets
from enum import Enum
from typing import Any, Optional

from runtime.agent.tasks.records import ClaimRecord
from runtime.protocol.codec import WireError, decode
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.states import Status
from runtime.protocol.tasks import Task, TaskUpdate


class ClaimAnswer(str, Enum):
    """What a refused claim means. ``MINE``: an earlier try was stored. ``LOST``: leave it. ``LATER``: the refusal
    is not about the task (a wrong key, a node that is not bound): nothing is known, ask again."""

    MINE = "mine"
    LOST = "lost"
    LATER = "later"


def new_claim_token() -> str:
    """A token that nobody else makes: 128 random bits."""
    return secrets.token_hex(16)


def claim_update(node_id: str, claim: ClaimRecord) -> TaskUpdate:
    return TaskUpdate(
        node_id=node_id,
        attempt=claim.key.attempt,
        claim_token=claim.claim_token,
        from_status=Status.SCHEDULED,
        status=Status.RUNNING,
    )


def read_refusal(problem: ProblemDocument, control_plane_id: str) -> ClaimAnswer:
    """Pure. ``control_plane_id``: who offered the task; another one says nothing about it."""
    if problem.control_plane_id not in (None, control_plane_id):
        return ClaimAnswer.LATER
    if problem.code == "state_conflict":
        members = problem.members
        ours = members.get("claim_token_matches") is True and members.get("task_status") == Status.RUNNING.value
        return ClaimAnswer.MINE if ours else ClaimAnswer.LOST
    if problem.status in (401, 403):
        return ClaimAnswer.LATER
    return ClaimAnswer.LOST


def carried_task(problem: ProblemDocument) -> Optional[Task]:
    """The task, secrets included, that a 409 to the claim's owner carries."""
    document: Any = problem.members.get("task")
    try:
        return decode(Task, document) if isinstance(document, dict) else None
    except WireError:
        return None


def is_ours(task: Task, claim: ClaimRecord, node_id: str) -> bool:
    """Whether the server still says: running or asleep, here, this attempt of this very task."""
    return (
        task.status in (Status.RUNNING, Status.SLEEPING)
        and task.node_id == node_id
        and task.uid == claim.key.uid
        and task.attempt == claim.key.attempt
    )
