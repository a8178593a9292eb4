"""What follows from how a beat went: when the next one is due, and what the agent does about it.

Pure decisions; :mod:`runtime.agent.link.heartbeat` carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional

from runtime.agent.link.errors import LinkError, Refused, Unavailable

REFUSED_S = 60.0
"""How long an agent waits that was refused for a reason only people can change."""

INTERVAL_LOW_S = 1.0
INTERVAL_HIGH_S = 60.0


class Action(str, Enum):
    NONE = "none"
    TAKE_RUN = "take_run"
    NEW_INSTANCE = "new_instance"
    SPARE_NODE_ID = "spare_node_id"


class Link(str, Enum):
    """How the server is reached, by the last beat."""

    GOOD = "good"
    """Answered with 200."""
    POLL = "poll"
    """Beats fail with an answer: work is asked for every ``poll_interval_s``."""
    REFUSED = "refused"
    """The key or the node id is refused: nothing is asked for and nothing is claimed."""
    AWAY = "away"
    """No answer, or one that asks to wait: the beat's back-off is everybody's."""


@dataclass(frozen=True)
class Outcome:
    """``delay_s`` None: by back-off. ``known_run`` goes with TAKE_RUN."""

    link: Link
    action: Action = Action.NONE
    delay_s: Optional[float] = None
    known_run: int = 0


def after_failure(error: LinkError, *, interval_s: float, may_rename: bool) -> Outcome:
    """What a failed beat means. ``may_rename``: the node id was defaulted, and this agent holds nothing."""
    if isinstance(error, Unavailable):
        if error.answered and error.retry_after is None:
            return Outcome(Link.POLL)
        return Outcome(Link.AWAY)
    if isinstance(error, Refused):
        return _after_refusal(error, interval_s, may_rename)
    return Outcome(Link.AWAY)


def is_about_the_name(error: LinkError) -> bool:
    """Whether another name may help: only then is it worth looking at what depends on the present one."""
    return isinstance(error, Refused) and error.code == "node_id_in_use"


def _after_refusal(error: Refused, interval_s: float, may_rename: bool) -> Outcome:
    code = error.code
    if error.problem.status == 401:
        return Outcome(Link.REFUSED, delay_s=REFUSED_S)
    if code == "stale_run":
        known = error.problem.members.get("known_run")
        if isinstance(known, int):
            return Outcome(Link.POLL, Action.TAKE_RUN, 0.0, known)
        return Outcome(Link.POLL)
    if code == "instance_cloned":
        return Outcome(Link.REFUSED, Action.NEW_INSTANCE, 0.0)
    if is_about_the_name(error) and may_rename:
        return Outcome(Link.REFUSED, Action.SPARE_NODE_ID, 0.0)
    if code in ("node_id_in_use", "instance_mismatch"):
        return Outcome(Link.REFUSED, delay_s=REFUSED_S)
    return Outcome(Link.POLL, delay_s=interval_s)


def clamped_interval(interval_s: float) -> float:
    """The server's choice of the beat's period, within 1 to 60 s."""
    return min(INTERVAL_HIGH_S, max(INTERVAL_LOW_S, interval_s))
