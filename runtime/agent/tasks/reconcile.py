"""What to do about a claim or a container, from three views of it: engine, journal, server. One pure table.

Read it from the top: the first row that fits decides. In doubt the container stays. "Cannot list" never gets here:
without a listing there is nothing to decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from runtime.agent.tasks.records import KEPT_STAGES, Stage


class Decision(str, Enum):
    """What follows for one attempt.

    ``adopt``: watch the running container. ``rest``: it sleeps, and is kept as it is. ``conclude``: it ended; find
    out how and report. ``start``: it was made and not started. ``resume``: go on from the checks with what is left of
    the budgets. ``ask_again``: the claim's outcome is unknown. ``report``: the conclusion is not delivered.
    ``remove``: delivered, or nobody's any more and ended; only the container is left. ``lost``: it had started and is
    gone. ``reclaim``: the journal lost it, the container's labels still say all. ``stop_stale``: another attempt or
    end is the valid one. ``forget``: nothing is left. ``foreign``: another control plane's or node's. ``keep``: not
    enough is known.
    """

    ADOPT = "adopt"
    REST = "rest"
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
    this node. ``same_instance``: they name this very instance. ``settled``: the container is older than a minute.
    ``whole``: the list is known good, and what is not in it is not there."""

    box: Box
    stage: Optional[Stage]
    server: Server = Server.UNKNOWN
    own: bool = True
    same_instance: bool = True
    settled: bool = True
    whole: bool = True


@dataclass(frozen=True)
class Row:
    """One line of the table: what it asks for (None: anything), what follows, and why, in a word for the log."""

    decision: Decision
    why: str
    box: Optional[Collection[Box]] = None
    stage: Optional[Collection[Optional[Stage]]] = None
    server: Optional[Collection[Server]] = None
    own: Optional[bool] = None
    same_instance: Optional[bool] = None
    settled: Optional[bool] = None
    whole: Optional[bool] = None

    def fits(self, seen: Situation) -> bool:
        return (
            (self.box is None or seen.box in self.box)
            and (self.stage is None or seen.stage in self.stage)
            and (self.server is None or seen.server in self.server)
            and self.own in (None, seen.own)
            and self.same_instance in (None, seen.same_instance)
            and self.settled in (None, seen.settled)
            and self.whole in (None, seen.whole)
        )


_NO_CLAIM = (None,)
_GONE = (Server.ENDED, Server.MOVED, Server.DELETED)
_NOT_STARTED = (Stage.CLAIMED, Stage.CREATED)
_D, _B, _S, _V = Decision, Box, Stage, Server

TABLE = (
    # decision      why                          what it asks for
    Row(_D.FOREIGN, "not_ours", own=False),
    # The journal has nothing: only labels and server can tell.
    Row(_D.FORGET, "nothing_is_left", stage=_NO_CLAIM, box=(_B.NONE,)),
    Row(_D.KEEP, "the_engine_removes_it", stage=_NO_CLAIM, box=(_B.GOING,)),
    Row(_D.KEEP, "younger_than_a_minute", stage=_NO_CLAIM, server=_GONE, settled=False),
    Row(_D.REMOVE, "over_and_ended", stage=_NO_CLAIM, server=_GONE, box=(_B.ENDED,)),
    Row(_D.STOP_STALE, "over_or_elsewhere", stage=_NO_CLAIM, server=_GONE),
    Row(_D.RECLAIM, "the_journal_lost_it", stage=_NO_CLAIM, server=(_V.OURS,)),
    Row(_D.RECLAIM, "it_runs_and_is_ours", stage=_NO_CLAIM, box=(_B.RUNNING,), same_instance=True),
    Row(_D.KEEP, "the_server_does_not_say", stage=_NO_CLAIM),
    # The end is written down: it goes to the server, and only then the container goes.
    Row(_D.REPORT, "not_delivered", stage=(_S.CONCLUDED,)),
    Row(_D.FORGET, "delivered_and_removed", stage=(_S.DONE,), box=(_B.NONE,), whole=True),
    Row(_D.REMOVE, "delivered", stage=(_S.DONE,)),
    # A claim that is under way.
    Row(_D.ASK_AGAIN, "claim_not_answered", stage=(_S.CLAIMING,)),
    Row(_D.STOP_STALE, "over_or_elsewhere", server=_GONE),
    Row(_D.RESUME, "not_started", stage=_NOT_STARTED, box=(_B.NONE,)),
    Row(_D.KEEP, "the_list_is_in_doubt", box=(_B.NONE,), whole=False),
    Row(_D.LOST, "started_and_gone", stage=KEPT_STAGES, box=(_B.NONE,), server=(_V.OURS,)),
    Row(_D.KEEP, "the_server_does_not_say", box=(_B.NONE,)),
    Row(_D.KEEP, "the_engine_removes_it", box=(_B.GOING,)),
    Row(_D.ADOPT, "it_runs", box=(_B.RUNNING,)),
    Row(_D.REST, "it_sleeps", stage=(_S.SLEEPING,)),
    Row(_D.START, "made_and_not_started", box=(_B.CREATED,)),
    Row(_D.CONCLUDE, "it_ended", box=(_B.ENDED,)),
)


def row_of(seen: Situation) -> Row:
    """The row that decides about one attempt."""
    return next(row for row in TABLE if row.fits(seen))


def decide(seen: Situation) -> Decision:
    """One attempt's decision."""
    return row_of(seen).decision


def needs_server(seen: Situation) -> bool:
    """Whether the server's view would change the decision: then it is asked about this very task."""
    return len({decide(dataclasses.replace(seen, server=server)) for server in Server}) > 1
