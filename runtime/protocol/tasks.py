"""Tasks on the wire: as created, as read, as changed by the node that runs them.

Sizes ``_mib``, durations ``_s``. The state machine is in :mod:`runtime.protocol.states`, the reasons in
:mod:`runtime.protocol.reasons`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Optional, Union

from runtime.protocol.constraints import Items, NodeId, Text, Token, Within
from runtime.protocol.states import Driver, Kind, Status

HIDDEN = "***"
"""Stands where a secret value (an env value) is not shown."""

LOG_TAIL_BYTES = 64 * 1024
LOG_KEEP_BYTES = 1024 * 1024

Port = Annotated[int, Within(1, 65535)]
AttemptNumber = Annotated[int, Within(0, 2**31 - 1)]
"""Bounded by what every database stores."""

LONGEST_S = 10 * 366 * 86400
"""Ten years. A clock that is asked to wait for longer fails on the node, and looks like the node's fault."""
VOLUMES_LIMIT = 256
LARGEST_MIB = 1 << 30
"""A pebibyte: engines count bytes in 64 bits."""


@dataclass(frozen=True)
class Volume:
    """A bind mount. ``create`` lets the agent make the last folder."""

    host: Annotated[str, Text(1, 4096)]
    container: Annotated[str, Text(1, 4096)]
    read_only: bool = True
    create: bool = False


@dataclass(frozen=True)
class PortMapping:
    container: Port
    host: Optional[Port] = None


@dataclass(frozen=True)
class GpuRequest:
    """Which cards a task wants. ``model`` is a shell pattern; ``slice`` a profile's name."""

    count: Annotated[int, Within(1, 1024)] = 1
    vendor: Optional[Annotated[str, Text(1, 40)]] = None
    model: Optional[Annotated[str, Text(1, 200)]] = None
    gpu_class: Optional[Annotated[str, Text(1, 200)]] = field(default=None, metadata={"alias": "class"})
    min_memory_mib: Optional[Annotated[int, Within(1, LARGEST_MIB)]] = None
    uuids: Optional[list[str]] = None
    slice: Optional[Annotated[str, Text(1, 60)]] = None
    mps: bool = False
    same_nvlink_domain: bool = False


@dataclass(frozen=True)
class HealthProbe:
    """How the agent asks the program whether it is well. ``path`` counts for http only."""

    type: Annotated[str, Text(pattern="http|tcp")]
    port: Port
    path: Annotated[str, Text(1, 2048, "/.*")] = "/health"
    interval_s: Annotated[float, Within(0.1, 3600)] = 5
    timeout_s: Annotated[float, Within(0.1, 3600)] = 2
    failures: Annotated[int, Within(1, 1000)] = 3
    start_period_s: Optional[Annotated[float, Within(0, LONGEST_S)]] = None
    on_failure: Annotated[str, Text(pattern="report|fail")] = "report"


@dataclass(frozen=True)
class RegistryAuth:
    """Write-only: encrypted at rest, wiped at the end, shown to nobody but the claim's owner."""

    server: Annotated[str, Text(1, 300)]
    username: Annotated[str, Text(1, 300)]
    password: Annotated[str, Text(1, 65536)] = field(repr=False)


@dataclass(frozen=True)
class TaskSpec:
    """``POST /api/v1/tasks``. ``memory_mib``, ``shm_mib`` in MiB, ``cpus`` in cores, ``*_s`` in seconds."""

    name: Annotated[str, Text(1, 200)]
    id: Optional[Annotated[str, NodeId]] = None
    kind: Kind = Kind.JOB
    driver: Driver = Driver.DOCKER
    image: Optional[Annotated[str, Text(1, 512)]] = None
    entrypoint: Optional[Annotated[list[str], Items(0, 1024)]] = None
    command: Optional[Annotated[list[str], Items(0, 4096)]] = None
    env: Optional[Union[dict[str, str], list[str]]] = field(default=None, repr=False)
    workdir: Optional[Annotated[str, Text(1, 4096)]] = None
    user: Optional[Annotated[str, Text(1, 200)]] = None
    volumes: Annotated[list[Volume], Items(0, VOLUMES_LIMIT)] = field(default_factory=list)
    ports: Annotated[list[PortMapping], Items(0, 256)] = field(default_factory=list)
    network: Annotated[str, Text(pattern="bridge|host")] = "bridge"
    gpus: Optional[GpuRequest] = None
    cpus: Optional[Annotated[float, Within(0.01, 4096)]] = None
    memory_mib: Optional[Annotated[int, Within(6, LARGEST_MIB)]] = None
    shm_mib: Optional[Annotated[int, Within(1, LARGEST_MIB)]] = None
    ipc_host: Optional[bool] = None
    timeout_s: Optional[Annotated[float, Within(0.1, LONGEST_S)]] = None
    start_timeout_s: Optional[Annotated[float, Within(0.1, LONGEST_S)]] = None
    stop_grace_s: Annotated[float, Within(0, 86400)] = 10
    health: Optional[HealthProbe] = None
    registry_auth: Optional[RegistryAuth] = field(default=None, repr=False)
    checkpoint_path: Optional[Annotated[str, Text(1, 4096)]] = None
    checkpoint_framework: Annotated[str, Text(1, 40)] = "auto"
    resume_from_checkpoint: Optional[Annotated[str, Text(1, 4096)]] = None
    labels: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    node_id: Optional[Annotated[str, NodeId]] = None
    priority: Annotated[int, Within(0, 100)] = 50
    on_node_lost: Annotated[str, Text(pattern="wait|reschedule|fail")] = "wait"
    max_attempts: Optional[Annotated[int, Within(1, 100)]] = None
    model: Optional[Annotated[str, Text(1, 4096)]] = None
    engine: Annotated[str, Text(1, 40)] = "auto"
    profile: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskWarning:
    """Something the task was accepted with all the same, or that is true beside its end."""

    code: str
    detail: str


@dataclass(frozen=True)
class AssignedGpu:
    uuid: str
    index: Optional[int] = None
    vendor: Optional[str] = None
    model: Optional[str] = None
    parent_uuid: Optional[str] = None
    profile: Optional[str] = None


@dataclass(frozen=True)
class Endpoint:
    """Where a published port is reached."""

    container_port: int
    address: Optional[str] = None
    port: Optional[int] = None


@dataclass(frozen=True)
class Attempt:
    """One time that a task was given to a node."""

    attempt: int
    node_id: Optional[str] = None
    instance_id: Optional[str] = None
    scheduled_at: Optional[str] = None
    claimed_at: Optional[str] = None
    started_at: Optional[str] = None
    ended_at: Optional[str] = None
    node_finished_at: Optional[str] = None
    exit_code: Optional[int] = None
    reason: Optional[str] = None
    reason_class: Optional[str] = None
    error: Optional[str] = None
    container_id: Optional[str] = None


@dataclass(frozen=True)
class Task:
    """A task as read. ``env`` values in ``spec`` are hidden, ``registry_auth`` is absent, but for the owner
    of the claim (in the 200 of the claim, in a 409 with ``claim_token_matches``, and with X-Claim-Token)."""

    id: str
    uid: str
    status: Status
    attempt: int
    node_id: Optional[str] = None
    name: Optional[str] = None
    kind: Optional[Kind] = None
    driver: Optional[Driver] = None
    desired: Optional[str] = None
    phase: Optional[str] = None
    ready: Optional[bool] = None
    starts: Optional[int] = None
    max_attempts: Optional[int] = None
    priority: Optional[int] = None
    labels: Optional[dict[str, str]] = None
    created_at: Optional[str] = None
    scheduled_at: Optional[str] = None
    started_at: Optional[str] = None
    finished_at: Optional[str] = None
    node_finished_at: Optional[str] = None
    exit_code: Optional[int] = None
    reason: Optional[str] = None
    reason_class: Optional[str] = None
    error: Optional[str] = None
    log_tail: Optional[str] = None
    stalled: Optional[bool] = None
    node_lost_since: Optional[str] = None
    gpus_assigned: Optional[list[AssignedGpu]] = None
    endpoints: Optional[list[Endpoint]] = None
    attempts: Optional[list[Attempt]] = None
    warnings: Optional[list[TaskWarning]] = None
    spec: Optional[TaskSpec] = None


@dataclass(frozen=True)
class TaskList:
    tasks: list[Task] = field(default_factory=list)
    next_cursor: Optional[str] = None


@dataclass(frozen=True)
class TaskUpdate:
    """``PUT /api/v1/tasks/{id}``: a compare-and-set by the node that holds the task.

    ``warnings``: what is worth knowing beside an end and does not change it. They become the task's.
    """

    node_id: Annotated[str, NodeId]
    attempt: AttemptNumber
    claim_token: Annotated[str, Token]
    from_status: Status
    status: Status
    exit_code: Optional[Annotated[int, Within(-(2**31), 2**31 - 1)]] = None
    reason: Optional[Annotated[str, Text(1, 64)]] = None
    error: Optional[Annotated[str, Text(0, 65536)]] = None
    log_tail: Optional[Annotated[str, Text(0, 4 * LOG_TAIL_BYTES)]] = None
    node_finished_at: Optional[str] = None
    container_id: Optional[Annotated[str, Text(1, 128)]] = None
    warnings: Optional[list[TaskWarning]] = None


@dataclass(frozen=True)
class Reclaim:
    """``POST /api/v1/tasks/{id}/reclaim``: only when the journal is lost."""

    node_id: Annotated[str, NodeId]
    instance_id: Annotated[str, Token]
    attempt: AttemptNumber
    claim_token: Annotated[str, Token]


@dataclass(frozen=True)
class LogChunk:
    """``POST /api/v1/tasks/{id}/logs``: raw bytes [from, to) of the container's output, as text.

    ``dropped`` bytes before ``from`` are gone. Accepted when ``from - dropped`` equals the held end. ``gap``: more
    than these are gone, and nobody knows how many; positions count what is known. ``mark`` is the node's own word for
    the place behind ``to``; a refusal for its offset gives it back (``held_mark``).
    """

    attempt: AttemptNumber
    claim_token: Annotated[str, Token]
    start: Annotated[int, Within(0, 2**53)] = field(metadata={"alias": "from"})
    end: Annotated[int, Within(0, 2**53)] = field(metadata={"alias": "to"})
    data: str
    dropped: Annotated[int, Within(0, 2**53)] = 0
    gap: bool = False
    mark: Optional[Annotated[str, Text(0, 200)]] = None


@dataclass(frozen=True)
class LogText:
    """``GET /api/v1/tasks/{id}/logs``: what is held of one attempt's output, by raw byte position."""

    attempt: int
    start: int = field(metadata={"alias": "from"})
    end: int = field(metadata={"alias": "to"})
    data: str
    dropped: int = 0


@dataclass(frozen=True)
class RejectedCheckpoint:
    path: str
    reason: str


@dataclass(frozen=True)
class CheckpointResume:
    """``POST /api/v1/tasks/{id}/checkpoint-resume``: becomes an event."""

    attempt: AttemptNumber
    claim_token: Annotated[str, Token]
    found: bool
    path: Optional[str] = None
    framework: Optional[str] = None
    step: Optional[int] = None
    rejected: list[RejectedCheckpoint] = field(default_factory=list)
