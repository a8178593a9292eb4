"""The task state machine as data: one table that server, agent, docs and tests read.

::

    pending -> scheduled -> running -> completed | failed | stopped
                            running -> sleeping -> running | stopped | failed
    pending | scheduled -> cancelled
    scheduled -> pending      node gone, cordoned, not claiming; card lost before the start
    running   -> pending      handed back before a start; infrastructure end with starts left; node lost
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """What is."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    SLEEPING = "sleeping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


class Desired(str, Enum):
    """What the operator wants."""

    RUN = "run"
    SLEEP = "sleep"
    STOP = "stop"
    DELETE = "delete"


class Phase(str, Enum):
    """Where a claim stands on the node."""

    CLAIMED = "claimed"
    CHECKING = "checking"
    PULLING = "pulling"
    CREATING = "creating"
    STARTING = "starting"
    LOADING = "loading"
    RUNNING = "running"
    STOPPING = "stopping"
    SLEEPING = "sleeping"
    ENDED = "ended"
    REPORTING = "reporting"
    STUCK = "stuck"


class OrphanState(str, Enum):
    """How something stands on a node that the server, its database put back, does not know.

    ``claimed``: not started, and its secret values are not there any more. ``running``: it runs, or is about to.
    ``sleeping``: its container is stopped and kept. ``concluded``: it ended, and the node has its conclusion.
    ``superseded``: the node ended it because another attempt or end was the valid one.
    """

    CLAIMED = "claimed"
    RUNNING = "running"
    SLEEPING = "sleeping"
    CONCLUDED = "concluded"
    SUPERSEDED = "superseded"


class Kind(str, Enum):
    JOB = "job"
    TRAINING = "training"
    INFERENCE = "inference"


class Driver(str, Enum):
    DOCKER = "docker"
    PROCESS = "process"


class Actor(str, Enum):
    """Who may make a transition."""

    AGENT = "agent"
    SERVER = "server"


@dataclass(frozen=True)
class Transition:
    """One allowed change of status. ``by`` names everyone who may ask for it."""

    source: Status
    target: Status
    by: tuple[Actor, ...]
    when: str


_AGENT = (Actor.AGENT,)
_SERVER = (Actor.SERVER,)

TRANSITIONS: tuple[Transition, ...] = (
    Transition(Status.PENDING, Status.SCHEDULED, _SERVER, "placement found a node"),
    Transition(Status.PENDING, Status.CANCELLED, _SERVER, "stopped or deleted before it was placed"),
    Transition(Status.SCHEDULED, Status.CANCELLED, _SERVER, "stopped or deleted before a node claimed it"),
    Transition(
        Status.SCHEDULED, Status.PENDING, _SERVER, "node gone, cordoned or not claiming; card lost before the start"
    ),
    Transition(Status.SCHEDULED, Status.RUNNING, _AGENT, "claimed"),
    Transition(Status.RUNNING, Status.COMPLETED, _AGENT, "the program ended with 0"),
    Transition(Status.RUNNING, Status.FAILED, (Actor.AGENT, Actor.SERVER), "ended otherwise; node lost with 'fail'"),
    Transition(Status.RUNNING, Status.STOPPED, _AGENT, "ended because the operator stopped it"),
    Transition(
        Status.RUNNING,
        Status.PENDING,
        (Actor.AGENT, Actor.SERVER),
        "handed back before a start; infrastructure end with starts left; node lost with 'reschedule'",
    ),
    Transition(Status.RUNNING, Status.SLEEPING, _AGENT, "its container is stopped and kept"),
    Transition(Status.SLEEPING, Status.RUNNING, _AGENT, "the same container runs again"),
    Transition(Status.SLEEPING, Status.STOPPED, _AGENT, "stopped while asleep"),
    Transition(Status.SLEEPING, Status.FAILED, (Actor.AGENT, Actor.SERVER), "could not wake"),
)

TERMINAL: frozenset[Status] = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.STOPPED})
"""States that never change again."""

ON_NODE: frozenset[Status] = frozenset({Status.SCHEDULED, Status.RUNNING, Status.SLEEPING})
"""States in which a task belongs to a node."""

_BY_EDGE = {(t.source, t.target): t for t in TRANSITIONS}


def transition(source: Status, target: Status) -> Transition | None:
    """The table's row for this change, or None when the change is never allowed."""
    return _BY_EDGE.get((source, target))
