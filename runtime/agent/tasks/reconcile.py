"""What to do about a claim or a container, from three views of it: engine, journal, server. One pure table.

In doubt the container stays. "Cannot list" never gets here: without a listing there is nothing to decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional

from runtime.agent.tasks.records import Stage


class Decision(str, Enum):
    """What follows for one attempt.

    ``adopt``: watch the running container. ``conclude``: it ended; find out how and report. ``start``: it was
    made and not started. ``resume``: go on from the checks with what is left of the budgets. ``ask_again``: the
    claim's outcome is unknown. ``report``: the conclusion is not delivered. ``remove``: delivered, only the
    container is left. ``lost``: it had started and is gone. ``reclaim``: the journal lost it, the container's
    labels still say all. ``stop_stale``: another attempt or end is the valid one. ``forget``: nothing is left.
    ``foreign``: another control plane's. ``keep``: not enough is known.
    """

    ADOPT = "adopt"
    CONCLUDE = "conclude"
    START = "start"
    RESUME = "resume"
    ASK_AGAIN = "ask_again"
    REPORT = "report"
    REMOVE = "remove"
    LOST = "lost"
    RECLAIM = "reclaim"
    STOP_STALE = "stop_stale"
    FORGET = "forget"
    FOREIGN = "foreign"
    KEEP = "keep"


class Server(str, Enum):
    """What the server says of this very attempt. ``ours``: running or asleep, here. ``ended``: terminal.
    ``moved``: another node, a higher attempt, or waiting to be placed. ``deleted``: proven gone. ``unknown``: it
    was not asked, did not answer, or said something else."""

    OURS = "ours"
    ENDED = "ended"
    MOVED = "moved"
    DELETED = "deleted"
    UNKNOWN = "unknown"


class Box(str, Enum):
    """The container: there is none, it was made, it runs, it ended, or the engine is removing it."""

    NONE = "none"
    CREATED = "created"
    RUNNING = "running"
    ENDED = "ended"
    GOING = "going"


BOX_OF_STATE = {
    "created": Box.CREATED,
    "running": Box.RUNNING,
    "paused": Box.RUNNING,
    "restarting": Box.RUNNING,
    "exited": Box.ENDED,
    "dead": Box.ENDED,
    "removing": Box.GOING,
}


@dataclass(frozen=True)
class Situation:
    """``stage`` is None when the journal has nothing. ``own``: the container's labels name this control plane and
    this node. ``settled``: the container is older than a minute."""

    box: Box
    stage: Optional[Stage]
    server: Server = Server.UNKNOWN
    own: bool = True
    settled: bool = True


_GONE = (Server.ENDED, Server.MOVED, Server.DELETED)


def decide(seen: Situation) -> Decision:
    """One attempt's decision."""
    if not seen.own:
        return Decision.FOREIGN
    if seen.stage is None:
        return _without_journal(seen)
    if seen.stage is Stage.CONCLUDED:
        return Decision.REPORT
    if seen.stage is Stage.DONE:
        return Decision.FORGET if seen.box is Box.NONE else Decision.REMOVE
    if seen.stage is Stage.CLAIMING:
        return Decision.ASK_AGAIN
    if seen.server in _GONE:
        return Decision.STOP_STALE
    started = seen.stage in (Stage.STARTING, Stage.RUNNING)
    if seen.box is Box.NONE:
        if not started:
            return Decision.RESUME
        return Decision.LOST if seen.server is Server.OURS else Decision.KEEP
    if seen.box is Box.GOING:
        return Decision.KEEP
    if seen.box is Box.CREATED:
        return Decision.START
    return Decision.ADOPT if seen.box is Box.RUNNING else Decision.CONCLUDE


def _without_journal(seen: Situation) -> Decision:
    if seen.box is Box.NONE:
        return Decision.FORGET
    if seen.server is Server.OURS:
        return Decision.RECLAIM
    if seen.server in _GONE and seen.settled:
        return Decision.STOP_STALE
    return Decision.KEEP


def needs_server(seen: Situation) -> bool:
    """Whether the server's view would change the decision: then it is asked about this very task."""
    return len({decide(_with(seen, server)) for server in Server}) > 1


def _with(seen: Situation, server: Server) -> Situation:
    return Situation(seen.box, seen.stage, server, seen.own, seen.settled)
