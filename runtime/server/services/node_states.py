"""When a node is online, unreachable, lost or offline: a pure decision over server receive times.

Times are seconds on the server's monotonic clock. What an agent says about the time is never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.protocol.nodes import NodeState


@dataclass(frozen=True)
class Limits:
    """Seconds of silence until each state."""

    unreachable_after_s: float
    lost_after_s: float
    offline_grace_s: float


@dataclass(frozen=True)
class Reference:
    """What silence is counted from, beside the last beat.

    ``started_at``: the server's start; ``grace_until``: start and start_grace_s together; ``released_at``: when
    the brake was let go last (None: never). ``braked``: nothing becomes lost now.
    """

    started_at: float
    grace_until: float
    released_at: float | None = None
    braked: bool = False


@dataclass(frozen=True)
class Heard:
    """``at`` None: not since the server's start. ``leaving``: the newest beat said so."""

    at: float | None
    leaving: bool = False


def decide(state: NodeState, heard: Heard, now: float, limits: Limits, reference: Reference) -> NodeState:
    """The node's state now.

    Lost counts from max(last beat, server start + grace, brake release), so a server that was away cannot take
    its own absence for the nodes'. Nothing but a beat ends lost or offline.
    """
    counted_from = [reference.grace_until]
    if heard.at is not None:
        counted_from.append(heard.at)
    if reference.released_at is not None:
        counted_from.append(reference.released_at)
    silent_for_loss = now - max(counted_from)
    if heard.leaving:
        may_be_lost = silent_for_loss >= limits.offline_grace_s and not reference.braked
        return NodeState.LOST if state is NodeState.LOST or may_be_lost else NodeState.OFFLINE
    if heard.at is None and state in (NodeState.LOST, NodeState.OFFLINE):
        return state
    silent = now - max(reference.started_at, heard.at if heard.at is not None else reference.started_at)
    if silent < limits.unreachable_after_s:
        return NodeState.ONLINE if heard.at is not None else state
    if state is NodeState.LOST:
        return state
    if silent_for_loss >= limits.lost_after_s and not reference.braked:
        return NodeState.LOST
    return NodeState.UNREACHABLE
