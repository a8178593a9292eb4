"""Bringing a conclusion to the server: until it is there, or the server has decided otherwise."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING, Any, Union

from runtime.agent.link.retry import RetryPolicy
from runtime.agent.tasks.records import ClaimRecord, Letter
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.states import TERMINAL, Status
from runtime.protocol.tasks import TaskUpdate

if TYPE_CHECKING:
    from runtime.agent.settings import AgentSettings


class Delivery(str, Enum):
    """What a refused report means. ``DELIVERED``: the server holds our own or another end. ``SUPERSEDED``:
    another attempt, node or claim took over; ours goes to the archive. ``SHORTER``: try again without the log.
    ``CATCH_UP``: the server has not heard yet that the task fell asleep, or woke: tell that first.
    ``LATER``: keep it and try again."""

    DELIVERED = "delivered"
    SUPERSEDED = "superseded"
    SHORTER = "shorter"
    CATCH_UP = "catch_up"
    LATER = "later"


def report_update(node_id: str, letter: Letter) -> TaskUpdate:
    return TaskUpdate(
        node_id=node_id,
        attempt=letter.key.attempt,
        claim_token=letter.claim_token,
        from_status=letter.from_status,
        status=letter.status,
        exit_code=letter.exit_code,
        reason=letter.reason,
        error=letter.error,
        log_tail=letter.log_tail,
        node_finished_at=letter.node_finished_at,
        container_id=letter.container_id,
        warnings=list(letter.warnings) or None,
    )


def move_update(node_id: str, claim: Union[ClaimRecord, Letter], target: Status) -> TaskUpdate:
    """That a task fell asleep (``target`` sleeping), or runs again."""
    return TaskUpdate(
        node_id=node_id,
        attempt=claim.key.attempt,
        claim_token=claim.claim_token,
        from_status=Status.RUNNING if target is Status.SLEEPING else Status.SLEEPING,
        status=target,
        container_id=claim.container_id,
    )


def is_so_already(problem: ProblemDocument, claim: ClaimRecord, target: Status) -> bool:
    """Whether a refused :func:`move_update` says that an earlier try was stored. Pure."""
    members = problem.members
    return (
        problem.code == "state_conflict"
        and problem.control_plane_id in (None, claim.control_plane_id)
        and members.get("claim_token_matches") is True
        and members.get("attempt") == claim.key.attempt
        and members.get("task_status") == target.value
    )


def policy_of(settings: AgentSettings) -> RetryPolicy:
    """How often and how long one round of telling is tried."""
    return RetryPolicy(
        settings.report_attempts,
        settings.report_backoff_first_s,
        settings.report_backoff_max_s,
        settings.report_total_s,
    )


def read_refusal(problem: ProblemDocument, letter: Letter, node_id: str) -> Delivery:
    """Pure."""
    if problem.control_plane_id not in (None, letter.control_plane_id):
        return Delivery.LATER  # another control plane has a task of that name: it says nothing about ours
    if problem.status == 413 and letter.log_tail is not None:
        return Delivery.SHORTER
    if problem.code != "state_conflict":
        return Delivery.LATER
    members: dict[str, Any] = problem.members
    status, attempt, node = members.get("task_status"), members.get("attempt"), members.get("node_id")
    known = {member.value for member in Status}
    if status not in known:
        return Delivery.LATER
    if isinstance(attempt, int) and attempt != letter.key.attempt:
        return Delivery.SUPERSEDED
    if Status(status) in TERMINAL or status == letter.status.value:
        return Delivery.DELIVERED
    if status in (Status.PENDING.value, Status.SCHEDULED.value):
        # An infrastructure end with starts left goes back to pending in the transaction that records it.
        return Delivery.DELIVERED
    if isinstance(node, str) and node and node != node_id:
        return Delivery.SUPERSEDED
    if members.get("claim_token_matches") is True and status != letter.from_status.value:
        return Delivery.CATCH_UP
    return Delivery.SUPERSEDED if members.get("claim_token_matches") is False else Delivery.LATER


def without_log(letter: Letter) -> Letter:
    return dataclasses.replace(letter, log_tail=None)


OVER_DELETED = "deleted"
"""What becomes of a conclusion whose task the server has deleted."""


def over_as(status: Status) -> str:
    """What becomes of a conclusion when the server has given the task another end."""
    return f"ended:{status.value}"


def tells_the_end(letter: Letter) -> bool:
    """Whether a delivered letter is how its task ended, and not how this node gave up an attempt that another one, or
    an end that the server made, had overtaken. Only such a one is ever told again."""
    ends = ("stored", str(Delivery.DELIVERED.value), OVER_DELETED)
    return letter.delivered_at is not None and letter.outcome in ends
