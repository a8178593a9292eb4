"""What the journal holds of one claim and of one conclusion."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Optional

from runtime.agent.tasks.classify import Stop
from runtime.protocol.states import Driver, Status
from runtime.protocol.tasks import AssignedGpu, TaskSpec, TaskWarning


class Stage(str, Enum):
    """How far a claim has come, for good. A crash leaves it at the last one that was written.

    ``claiming``: the token is on disk, the server may or may not have it. ``claimed``: the server has it.
    ``created``: the container is there. ``starting``: the start call may have been sent. ``running``: it started.
    ``sleeping``: it was stopped to be started again, and is kept.
    ``concluded``: the outbox holds how it ended. ``done``: delivered; only the container's removal is left.
    """

    CLAIMING = "claiming"
    CLAIMED = "claimed"
    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    SLEEPING = "sleeping"
    CONCLUDED = "concluded"
    DONE = "done"


KEPT_STAGES = (Stage.STARTING, Stage.RUNNING, Stage.SLEEPING)
"""Those in which a container is there that has run, and that nobody may take for a finished one."""


@dataclass(frozen=True)
class Key:
    """One attempt of one task: what a claim is about."""

    uid: str
    attempt: int


@dataclass(frozen=True)
class ClaimRecord:
    """A claim on disk. ``spec`` is without secrets (env values, registry credentials).

    ``asked_mark`` and ``asked_mono`` are written before the start call: the container did not start earlier.
    ``started_mark`` and ``started_mono`` say when the container started: the machine's boot and its monotonic
    clock, so that a restart of the agent gives no extra time. ``pull_spent_s`` and ``pull_attempts`` are what is
    used of the pull budget. ``slept_run`` is the engine's own time of the start of the run that was put to sleep last:
    a container that still tells it was not started since. ``ran_before_s`` is how long it ran in all before that.
    """

    key: Key
    task_id: str
    control_plane_id: str
    claim_token: str
    stage: Stage
    spec: TaskSpec
    gpus: tuple[AssignedGpu, ...] = ()
    driver: Driver = Driver.DOCKER
    container_id: Optional[str] = None
    asked_mark: Optional[str] = None
    asked_mono: Optional[float] = None
    started_mark: Optional[str] = None
    started_mono: Optional[float] = None
    started_wall: Optional[float] = None
    ready: bool = False
    stop: Optional[Stop] = None
    start_error: Optional[str] = None
    pull_attempts: int = 0
    pull_spent_s: float = 0.0
    mounts: tuple[tuple[str, int, int], ...] = field(default=())
    slept_run: Optional[str] = None
    ran_before_s: float = 0.0

    def machine_restarted(self, boot: str) -> bool:
        """Whether the machine has restarted (its run is ``boot`` now) since the container started, or was told to."""
        mark = self.started_mark or self.asked_mark
        return mark is not None and mark != boot


@dataclass(frozen=True)
class Letter:
    """A conclusion in the outbox, ready to be sent as often as it takes.

    ``spec`` (without secrets), ``gpus`` and ``driver`` are the claim's: with them a control plane that has lost the
    task makes it anew.
    """

    key: Key
    task_id: str
    control_plane_id: str
    claim_token: str
    from_status: Status
    status: Status
    reason: Optional[str] = None
    exit_code: Optional[int] = None
    error: Optional[str] = None
    log_tail: Optional[str] = None
    node_finished_at: Optional[str] = None
    container_id: Optional[str] = None
    delivered_at: Optional[float] = None
    outcome: Optional[str] = None
    spec: Optional[TaskSpec] = None
    gpus: tuple[AssignedGpu, ...] = ()
    driver: Driver = Driver.DOCKER
    warnings: tuple[TaskWarning, ...] = ()


def claim_for(letter: Letter) -> ClaimRecord:
    """The claim of a conclusion that lost it, or whose claim is over: enough to bring the letter to the server."""
    return ClaimRecord(
        key=letter.key,
        task_id=letter.task_id,
        control_plane_id=letter.control_plane_id,
        claim_token=letter.claim_token,
        stage=Stage.CONCLUDED,
        spec=letter.spec or TaskSpec(name=letter.task_id),
        gpus=letter.gpus,
        driver=letter.driver,
        container_id=letter.container_id,
    )


def unconcluded(claim: ClaimRecord) -> ClaimRecord:
    """A claim that lost its conclusion, as it was before that: its end is looked at again, and drawn anew."""
    if claim.asked_mark is not None or claim.started_mark is not None:
        return replace(claim, stage=Stage.STARTING)
    return replace(claim, stage=Stage.CREATED if claim.container_id is not None else Stage.CLAIMED)


def is_partial(spec: TaskSpec) -> bool:
    """Whether this is all that a container's labels told of a task, and not what was asked for."""
    return (spec.image, spec.command, spec.entrypoint, spec.model) == (None, None, None, None)
