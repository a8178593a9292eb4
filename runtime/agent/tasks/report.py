"""Bringing a conclusion to the server: until it is there, or the server has decided otherwise."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

from runtime.agent.tasks.records import Letter
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.states import TERMINAL, Status
from runtime.protocol.tasks import TaskUpdate


class Delivery(str, Enum):
    """What a refused report means. ``DELIVERED``: the server holds our own or another end. ``SUPERSEDED``:
    another attempt, node or claim took over; ours goes to the archive. ``SHORTER``: try again without the log.
    ``LATER``: keep it and try again."""

    DELIVERED = "delivered"
    SUPERSEDED = "superseded"
    SHORTER = "shorter"
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
    return Delivery.SUPERSEDED if members.get("claim_token_matches") is False else Delivery.LATER


def without_log(letter: Letter) -> Letter:
    return dataclasses.replace(letter, log_tail=None)
