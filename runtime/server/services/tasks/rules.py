"""What a node's report may say, and what becomes of the task: pure functions over the state table.

A claim counts as a start; a hand-back takes the count back. So ``starts`` is how often a node took the task and
did not give it back before a start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runtime.protocol.problems import Fault, Problem
from runtime.protocol.reasons import CLASS_OF, Reason, ReasonClass
from runtime.protocol.states import TERMINAL, Actor, Desired, Status, transition
from runtime.protocol.tasks import TaskUpdate
from runtime.server.validation import refusal

BAD_ENDS_LIMIT = 3
"""That many hand-backs or infrastructure ends in a row cordon a node."""
EXCLUDED_S = 600
"""How long a node that handed a task back is left out for that task."""
LAST_SIGNAL = 64
"""An exit code of 128 and n, n up to this, is what a shell and an engine make of an end by signal n."""
RESTARTS = (Reason.HOST_RESTARTED, Reason.ENGINE_RESTARTED)
"""One of these ends all that runs on a node at once."""


@dataclass(frozen=True)
class Outcome:
    """What a report makes of a task.

    ``ends`` says that the attempt is over; ``handed_back`` that it never started; ``bad`` that the node's own
    doing ended it; ``ran`` that a program ran to its end there.
    """

    status: Status
    reason: Reason | None = None
    ends: bool = False
    handed_back: bool = False
    bad: bool = False
    ran: bool = False


def reason_class(reason: str | None) -> str | None:
    """The class of a stored reason."""
    return CLASS_OF[Reason(reason)].value if reason is not None else None


def judge(update: TaskUpdate) -> Reason | None:
    """The reason that ``update`` gives, when it may be said at all.

    A failed task whose reason is not given gets the one that its exit code tells. Raises Problem illegal_transition:
    422 for a change that the table does not have, 409 for one that a node may not make or not with these facts; and
    Problem invalid_task where a fact that it cannot do without is missing.
    """
    source, target = update.from_status, update.status
    edge = transition(source, target)
    if edge is None:
        raise Problem(
            "illegal_transition", f"{source.value} never becomes {target.value}.", status=422, **_members(update)
        )
    if Actor.AGENT not in edge.by:
        raise _forbidden(update, "only the server makes this change")
    reason = _reason(update)
    if target is Status.COMPLETED:
        if update.exit_code is None:
            # Nothing but the code 0 says that a program did what it was to do.
            raise refusal(
                "invalid_task", [Fault("exit_code", "nothing", "0 (completed is a program that ended with 0)")]
            )
        if update.exit_code != 0:
            raise _forbidden(update, f"completed needs exit_code 0, found {update.exit_code}")
        if reason not in (None, Reason.EXITED):
            raise _forbidden(update, f"completed comes with reason exited, found {update.reason}")
        return Reason.EXITED
    if target is Status.STOPPED:
        if reason not in (None, Reason.STOPPED_BY_OPERATOR):
            raise _forbidden(update, f"stopped comes with reason stopped_by_operator, found {update.reason}")
        return Reason.STOPPED_BY_OPERATOR
    if target is Status.FAILED:
        reason = reason or _plain_reason(update.exit_code)
        if reason is Reason.STOPPED_BY_OPERATOR:
            raise _forbidden(update, "a task that the operator stopped is stopped, not failed")
        if reason is Reason.EXITED and update.exit_code in (None, 0):
            raise _forbidden(update, f"failed with reason exited needs an exit_code other than 0, {update.exit_code}")
        return reason
    if target is Status.PENDING:
        if reason is None or CLASS_OF[reason] is not ReasonClass.INFRASTRUCTURE:
            raise _forbidden(update, f"handing back needs an infrastructure reason, found {update.reason}")
        if update.exit_code is not None:
            raise _forbidden(update, "what has an exit code was started, and cannot be handed back")
        return reason
    return reason


def outcome(update: TaskUpdate, reason: Reason | None, desired: Desired, starts: int, max_attempts: int) -> Outcome:
    """What ``update`` (already judged) makes of a task that the operator wants to ``desired``."""
    wanted = desired not in (Desired.STOP, Desired.DELETE)
    if update.status is Status.PENDING:
        if not wanted:
            return Outcome(Status.STOPPED, Reason.STOPPED_BY_OPERATOR, ends=True, handed_back=True, bad=True)
        return Outcome(Status.PENDING, reason, ends=True, handed_back=True, bad=True)
    if update.status not in TERMINAL:
        return Outcome(update.status)
    infrastructure = reason is not None and CLASS_OF[reason] is ReasonClass.INFRASTRUCTURE
    ran = not infrastructure and update.exit_code is not None
    again = (
        infrastructure
        and update.status is Status.FAILED
        and wanted
        and starts < max_attempts
        # What slept stays where its container is.
        and update.from_status is Status.RUNNING
    )
    return Outcome(Status.PENDING if again else update.status, reason, ends=True, bad=infrastructure, ran=ran)


def same_cause(reason: Reason, claimed_at: str | None, counted: str | None, counted_at: str | None) -> bool:
    """Whether an end is the work of a restart that was counted against its node already.

    ``counted``: the last reason that was counted, at ``counted_at``. A task that had been claimed by then may have been
    ended by that very restart; what was claimed later was ended by another one. Times are RFC 3339.
    """
    if reason not in RESTARTS or counted != reason.value or counted_at is None or claimed_at is None:
        return False
    return claimed_at <= counted_at


def lost_outcome(status: Status, desired: Desired, on_node_lost: str, starts: int, max_attempts: int) -> Status | None:
    """What becomes of a task whose node is lost: a new status, or None for waiting.

    Silence proves nothing about the work, so nothing moves that was not asked to; what sleeps never moves, and
    neither does what somebody wants stopped.
    """
    if status is not Status.RUNNING or on_node_lost == "wait" or desired in (Desired.STOP, Desired.DELETE):
        return None
    if on_node_lost == "reschedule" and starts < max_attempts:
        return Status.PENDING
    return Status.FAILED


def _plain_reason(exit_code: int | None) -> Reason:
    """Why a task failed of which only the exit code is told, or not even that: what the code says and no more."""
    if exit_code is None:
        return Reason.END_UNKNOWN
    return Reason.SIGNALLED if 128 < exit_code <= 128 + LAST_SIGNAL else Reason.EXITED


def _reason(update: TaskUpdate) -> Reason | None:
    if update.reason is None:
        return None
    try:
        return Reason(update.reason)
    except ValueError:
        known = ", ".join(reason.value for reason in Reason)
        raise _forbidden(update, f"unknown reason {update.reason!r}; known are {known}") from None


def _forbidden(update: TaskUpdate, why: str) -> Problem:
    text = f"{update.from_status.value} to {update.status.value} is not allowed now: {why}."
    return Problem("illegal_transition", text, status=409, **_members(update))


def _members(update: TaskUpdate) -> dict[str, Any]:
    return {"from_status": update.from_status.value, "to_status": update.status.value}
