"""The heartbeat: what a node says of itself every few seconds, and what the server answers.

A value that was not measured is absent (None here). Sections that the server holds already may be left out:
``digests`` names every section that is still true; a section in ``digests`` and not in the body is unchanged,
a section in neither is unknown. Which sections may be left out: :data:`UNCHANGING`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Optional, Union

from runtime.protocol.constraints import NodeId, Token, Within
from runtime.protocol.hardware import (
    Fabric,
    Gpu,
    GpuCapability,
    GpuCollectFailure,
    GpuDetection,
    GpuHolder,
    GpuNote,
    GpuStats,
    GpuTopology,
    Hca,
    Host,
)

UNCHANGING = ("gpus", "gpu_topology", "hcas", "fabrics", "engines", "discovered_models", "images", "host")
"""Sections that may be left out as unchanged (``host`` then without its load values)."""

STEADY = ("agent", "docker", "gpu_stats", "gpu_detection", "gpu_capabilities")
"""Members that may be left out in the same way where the server names them in its answer's ``keeps``. One that is
unchanged in ``gpu_stats`` was measured again, with the same values."""

MODELS_CAP = 2000
IMAGES_CAP = 500
ORPHANS_CAP = 400
"""So many a beat at most, newest first; ``truncated`` says that there are more."""


@dataclass(frozen=True)
class LoopState:
    """One periodic part of the agent. ``overdue`` when it has made no progress in three of its intervals; when it was
    well last is as of the beat that told its loops last."""

    name: str
    last_ok_at: Optional[str] = None
    overdue: bool = False


@dataclass(frozen=True)
class AgentBuild:
    version: str
    commit: str
    built_at: Optional[str] = None
    dirty: Optional[bool] = None
    arch: Optional[str] = None
    python: Optional[str] = None
    loops: list[LoopState] = field(default_factory=list)


@dataclass(frozen=True)
class DockerState:
    available: bool
    version: Optional[str] = None
    runtimes: list[str] = field(default_factory=list)
    engine_id: Optional[str] = None
    error: Optional[str] = None


@dataclass(frozen=True)
class ProcessState:
    """Whether plain processes run here, and what runs them. ``confined`` False: nothing keeps such a process from
    what its user may read."""

    available: bool
    confined: Optional[bool] = None
    version: Optional[str] = None
    error: Optional[str] = None


@dataclass(frozen=True)
class Slots:
    """How many claims a node holds at most, and holds now."""

    total: Annotated[int, Within(0)]
    used: Annotated[int, Within(0)] = 0


@dataclass(frozen=True)
class Engine:
    name: str
    version: Optional[str] = None
    image: Optional[str] = None
    source: Optional[str] = None


@dataclass(frozen=True)
class DiscoveredModel:
    """``source``: cache, scan or engine; ``state``: complete, incomplete or unknown."""

    name: str
    path: Optional[str] = None
    format: Optional[str] = None
    size_mib: Optional[int] = None
    source: str = "scan"
    state: str = "unknown"
    reason: Optional[str] = None


@dataclass(frozen=True)
class ModelsScan:
    at: Optional[str] = None
    partial: bool = False
    error: Optional[str] = None


@dataclass(frozen=True)
class PullProgress:
    layers_done: Optional[int] = None
    layers: Optional[int] = None
    bytes: Optional[int] = None


@dataclass(frozen=True)
class TaskHealth:
    """One entry per claim held by the node. ``since`` is when the phase began."""

    task_id: str
    uid: str
    attempt: int
    phase: str
    since: Optional[str] = None
    ready: Optional[bool] = None
    healthy: Optional[bool] = None
    detail: Optional[str] = None
    container_id: Optional[str] = None
    pull: Optional[PullProgress] = None


@dataclass(frozen=True)
class Foreign:
    """A container of another control plane or node (``foreign``), or of this node without a claim (``orphans``).

    While the server's database is known to be put back, ``orphans`` also holds what the server does not know of this
    node's claims and conclusions, with what it takes to make their rows anew: ``state`` is one of
    :class:`~runtime.protocol.states.OrphanState`, ``from_status``, ``status``, ``reason`` and ``exit_code`` are those
    of a conclusion (``outcome``: what became of it), ``assigned`` the cards as they were given, ``spec`` the
    specification without its secrets. ``container_id`` is empty where there is no container any more.
    """

    container_id: str
    task_id: Optional[str] = None
    control_plane_id: Optional[str] = None
    gpus: list[str] = field(default_factory=list)
    since: Optional[str] = None
    uid: Optional[str] = None
    attempt: Optional[int] = None
    state: Optional[str] = None
    claim_token: Annotated[Optional[str], "tells nobody but the control plane"] = field(default=None, repr=False)
    driver: Optional[str] = None
    from_status: Optional[str] = None
    status: Optional[str] = None
    reason: Optional[str] = None
    exit_code: Optional[int] = None
    outcome: Optional[str] = None
    assigned: Optional[list[dict[str, Any]]] = None
    spec: Optional[dict[str, Any]] = None


@dataclass(frozen=True)
class Heartbeat:
    """``POST /api/v1/agent/heartbeat``. Beats are ordered by (``run``, ``seq``)."""

    protocol: int
    node_id: Annotated[str, NodeId]
    instance_id: Annotated[str, Token]
    run: Annotated[int, Within(0, 2**53)]
    seq: Annotated[int, Within(0, 2**53)]
    fingerprint: Annotated[Optional[str], "machine-id and DMI product UUID together, hashed"] = None
    boot_id: Optional[str] = None
    sent_at: Optional[str] = None
    leaving: bool = False
    seen_revision: Optional[int] = None
    seen_control_plane_id: Annotated[Optional[str], "whose revision that was"] = None
    agent: Optional[AgentBuild] = None
    host: Optional[Host] = None
    docker: Optional[DockerState] = None
    exec_mode: Optional[str] = None
    drivers: Annotated[Optional[list[str]], "what may run here: docker, process"] = None
    process: Annotated[Optional[ProcessState], "absent where plain processes are switched off"] = None
    slots: Optional[Slots] = None
    labels: Optional[dict[str, str]] = None
    gpus: Optional[list[Gpu]] = None
    gpu_stats: Optional[list[GpuStats]] = None
    gpu_collect_failures: Optional[list[GpuCollectFailure]] = None
    gpu_collector_error: Optional[str] = None
    gpu_detection: Optional[list[GpuDetection]] = None
    gpu_capabilities: Optional[list[GpuCapability]] = None
    gpu_holders: Optional[list[GpuHolder]] = None
    gpu_notes: Annotated[Optional[list[GpuNote]], "what is worth knowing of cards and condemns none"] = None
    gpu_topology: Optional[GpuTopology] = None
    hcas: Optional[list[Hca]] = None
    fabrics: Optional[list[Fabric]] = None
    engines: Optional[list[Engine]] = None
    discovered_models: Optional[list[DiscoveredModel]] = None
    models_scan: Optional[ModelsScan] = None
    images: Optional[list[str]] = None
    live_task_ids: Optional[list[str]] = None
    task_health: Optional[list[TaskHealth]] = None
    foreign: Optional[list[Foreign]] = None
    orphans: Optional[list[Foreign]] = None
    told_from: Annotated[
        Optional[int], "orphans holds all that this node knows of what was lost above this revision"
    ] = None
    truncated: Annotated[
        Optional[Union[bool, list[str]]], "a section holds less than there is; older agents named which"
    ] = None
    digests: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PendingCounts:
    """``GET /api/v1/agent/pending`` and a member of every heartbeat's answer."""

    tasks: int = 0
    slices: int = 0
    images: int = 0
    files: int = 0


CHANNELS = tuple(member.name for member in fields(PendingCounts))
"""What an agent pulls, by the names that counts and wake events have: tasks, slices, images, files."""

LOGS = "logs"
"""In a wake event: somebody begins to read a log. Nothing is pulled; the answer to the next beat says which."""


@dataclass(frozen=True)
class Intent:
    """One non-terminal task that the server holds for this node."""

    task_id: str
    uid: str
    attempt: int
    status: str
    desired: str
    gpus: Optional[list[str]] = None


@dataclass(frozen=True)
class Follow:
    """Somebody reads this task's log: send it live until ``until``."""

    task_id: str
    attempt: int
    from_tail_bytes: Optional[int] = None
    until: Optional[str] = None


@dataclass(frozen=True)
class LostRevisions:
    """What a database that was put back has lost: everything above ``start``, up to ``end`` (None: nobody has said
    yet how far it goes)."""

    start: int = field(metadata={"alias": "from"})
    end: Optional[int] = field(default=None, metadata={"alias": "to"})


@dataclass(frozen=True)
class HeartbeatAnswer:
    """``lost``: the database was put back, and what this node knows of the lost time is asked for. ``keeps``: which of
    :data:`STEADY` this server remembers by their digests; an older one none."""

    registered: bool
    control_plane_id: str
    revision: int
    time: str
    interval_s: float = 5
    pending: Optional[PendingCounts] = None
    intents: list[Intent] = field(default_factory=list)
    follow: list[Follow] = field(default_factory=list)
    send_full: list[str] = field(default_factory=list)
    doorbell: Optional[str] = None
    lost: Optional[LostRevisions] = None
    keeps: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Preflight:
    """``GET /api/v1/agent/preflight``: the key is right, and this is who answers."""

    control_plane_id: str
    server_version: str
    protocol: int
    protocol_min: int
    time: str
