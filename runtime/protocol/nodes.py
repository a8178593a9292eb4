"""Nodes, cards and events as the API shows them. Null where nothing was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Optional

from runtime.protocol.constraints import Text, Within
from runtime.protocol.hardware import Fabric, Hca, Host
from runtime.protocol.heartbeat import AgentBuild, DiscoveredModel, DockerState, Engine, ModelsScan, ProcessState, Slots
from runtime.protocol.tasks import TaskWarning


class NodeState(str, Enum):
    ONLINE = "online"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    OFFLINE = "offline"


class CardHealth(str, Enum):
    OK = "ok"
    SUSPECT = "suspect"
    LOST = "lost"
    DIRTY = "dirty"
    UNKNOWN = "unknown"


class CardNote(str, Enum):
    """What a node says of a card beside its measurements; none of it condemns the card."""

    MIG_PENDING = "mig_pending"
    REMAP_PENDING = "remap_pending"
    REMAP_FAILED = "remap_failed"
    ECC_UNCORRECTED = "ecc_uncorrected"
    XID = "xid"
    UNIFIED_MEMORY = "unified_memory"
    HEALTH_WARNING = "health_warning"


@dataclass(frozen=True)
class Cordon:
    reason: str
    owner: str
    since: str


@dataclass(frozen=True)
class Card:
    """A card or slice with what the server concludes about it."""

    uuid: str
    vendor: str
    index: Optional[int] = None
    model: Optional[str] = None
    gpu_class: Optional[str] = field(default=None, metadata={"alias": "class"})
    memory_total_mib: Optional[int] = None
    memory_used_mib: Optional[int] = None
    utilization_pct: Optional[float] = None
    temperature_c: Optional[float] = None
    power_w: Optional[float] = None
    pci_bus_id: Optional[str] = None
    numa_node: Optional[int] = None
    compute_capability: Optional[str] = None
    driver_version: Optional[str] = None
    parent_uuid: Optional[str] = None
    profile: Optional[str] = None
    gi_id: Optional[int] = None
    ci_id: Optional[int] = None
    node_id: Optional[str] = None
    health: CardHealth = CardHealth.UNKNOWN
    tier: Optional[str] = None
    mode: Optional[str] = None
    allocated_to: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Node:
    """``discovered_models`` and ``models_scan`` are told of a node that is asked for by its id, not in lists."""

    id: str
    state: NodeState
    schedulable: bool = True
    cordon: Optional[Cordon] = None
    draining: bool = False
    instance_id: Optional[str] = None
    run: Optional[int] = None
    hostname: Optional[str] = None
    last_seen_at: Optional[str] = None
    agent: Optional[AgentBuild] = None
    host: Optional[Host] = None
    docker: Optional[DockerState] = None
    exec_mode: Optional[str] = None
    drivers: Optional[list[str]] = None
    process: Optional[ProcessState] = None
    slots: Optional[Slots] = None
    gpus: Optional[list[Card]] = None
    labels: dict[str, str] = field(default_factory=dict)
    fabrics: Optional[list[Fabric]] = None
    hcas: Optional[list[Hca]] = None
    engines: Optional[list[Engine]] = None
    discovered_models: Optional[list[DiscoveredModel]] = None
    models_scan: Optional[ModelsScan] = None
    clock_skew_s: Optional[float] = None
    warnings: list[TaskWarning] = field(default_factory=list)


@dataclass(frozen=True)
class NodeList:
    nodes: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class CardList:
    gpus: list[Card] = field(default_factory=list)


@dataclass(frozen=True)
class CardPoint:
    """What a card measured at one moment: degrees Celsius, percent, MiB, watts."""

    time: str
    temperature_c: Optional[float] = None
    utilization_pct: Optional[float] = None
    memory_used_mib: Optional[int] = None
    power_w: Optional[float] = None


@dataclass(frozen=True)
class CardHistory:
    """``GET /api/v1/gpus/{uuid}/history``: the last day, oldest first. A step in which the card was not heard has no
    point."""

    uuid: str
    step_s: int
    points: list[CardPoint] = field(default_factory=list)


@dataclass(frozen=True)
class CordonRequest:
    """``POST /api/v1/nodes/{id}/cordon``; without a body no reason is given.

    ``if_free``: a cordon or drain that is there stays, and the answer is 409 with it.
    """

    reason: Annotated[str, Text(0, 500)] = ""
    if_free: bool = False


@dataclass(frozen=True)
class UncordonRequest:
    """``POST /api/v1/nodes/{id}/uncordon``; without a body any cordon ends.

    With ``owner`` or ``reason`` only a cordon that has them ends: who made one and comes back later lifts no other
    that somebody has put in its place meanwhile.
    """

    owner: Optional[Annotated[str, Text(1, 200)]] = None
    reason: Optional[Annotated[str, Text(0, 500)]] = None


@dataclass(frozen=True)
class BuildUse:
    """How many nodes run one build. ``flagged``: dirty, or made from a plain checkout."""

    version: str
    commit: str
    built_at: Optional[str] = None
    dirty: Optional[bool] = None
    flagged: bool = False
    nodes: int = 0


@dataclass(frozen=True)
class BuildLedger:
    builds: list[BuildUse] = field(default_factory=list)


class EventKind(str, Enum):
    NODE_REGISTERED = "node_registered"
    NODE_REPLACED = "node_replaced"
    NODE_STATE = "node_state"
    NODE_CORDONED = "node_cordoned"
    BRAKE = "brake"
    GPU_SUSPECT = "gpu_suspect"
    GPU_LOST = "gpu_lost"
    GPU_RETURNED = "gpu_returned"
    CARDS_MISSING = "cards_missing"
    TASK_STATE = "task_state"
    TASK_PHASE = "task_phase"
    CLAIM_OVERDUE = "claim_overdue"
    CLAIM_RECOVERED = "claim_recovered"
    TASK_STALLED = "task_stalled"
    LATE_RESULT = "late_result"
    CHECKPOINT_RESUME = "checkpoint_resume"
    BUILD_CHANGED = "build_changed"
    INSTRUCTION_STATE = "instruction_state"
    DATABASE_ROLLED_BACK = "database_rolled_back"
    OPERATOR_ACTION = "operator_action"


@dataclass(frozen=True)
class Event:
    """``code`` is stable within the kind; ``detail`` a sentence."""

    id: int
    time: str
    kind: EventKind
    code: Optional[str] = None
    node_id: Optional[str] = None
    gpu_uuid: Optional[str] = None
    task_id: Optional[str] = None
    attempt: Optional[int] = None
    actor: Optional[str] = None
    detail: Optional[str] = None


@dataclass(frozen=True)
class EventList:
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True)
class DrainRequest:
    """``POST /api/v1/nodes/{id}/drain``: what happens to running work at the deadline."""

    reason: Annotated[str, Text(1, 500)] = "drain"
    deadline_s: Annotated[float, Within(0, 30 * 86400)] = 3600
    then: Annotated[str, Text(pattern="leave|stop|reschedule")] = "leave"


class FleetRunCode(str, Enum):
    """What an operator's machine may tell of a roll-out; these, and no other code, are taken from outside."""

    STARTED = "fleet_run_started"
    ENDED = "fleet_run_ended"


@dataclass(frozen=True)
class EventReport:
    """``POST /api/v1/events``: becomes an ``operator_action`` event whose actor is the token's name.

    ``detail`` says who did what to which hosts and how it went, in a sentence without secrets.
    """

    code: FleetRunCode
    detail: Annotated[str, Text(1, 1000)]
