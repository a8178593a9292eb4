"""Slice, image and file instructions: one request to one node, pulled, claimed and reported like a task."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Optional

from runtime.protocol.constraints import NodeId, Text, Token, Within


class InstructionStatus(str, Enum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Channel(str, Enum):
    """The three channels; the value is the path's first word (``/api/v1/image-requests``)."""

    SLICE = "slice"
    IMAGE = "image"
    FILE = "file"

    @property
    def plural(self) -> str:
        """Its name in pending counts and wake events (``images``)."""
        return f"{self.value}s"


@dataclass(frozen=True)
class SliceProfile:
    name: Annotated[str, Text(1, 60)]
    count: Annotated[int, Within(1, 64)] = 1


@dataclass(frozen=True)
class SliceInstance:
    gi_id: int
    ci_id: Optional[int] = None


@dataclass(frozen=True)
class SliceRequest:
    node_id: Annotated[str, NodeId]
    vendor: Annotated[str, Text(pattern="nvidia-mig|hygon-hami")]
    op: Annotated[str, Text(pattern="create|destroy")]
    gpu_uuid: Annotated[str, Text(1, 200)]
    profiles: list[SliceProfile] = field(default_factory=list)
    instances: list[SliceInstance] = field(default_factory=list)
    persistent: Optional[bool] = None
    on_failure: Annotated[str, Text(pattern="report|undo")] = "report"


@dataclass(frozen=True)
class ImageRequest:
    node_id: Annotated[str, NodeId]
    op: Annotated[str, Text(pattern="check|pull")]
    image: Annotated[str, Text(1, 512)]
    match: Annotated[str, Text(pattern="exact|repository")] = "exact"
    timeout_s: Annotated[float, Within(1, 86400)] = 1800


@dataclass(frozen=True)
class FileRequest:
    node_id: Annotated[str, NodeId]
    op: Annotated[str, Text(pattern="list|stat|tail|fetch|delete")]
    path: Annotated[str, Text(1, 4096)]
    url: Optional[Annotated[str, Text(1, 4096)]] = None
    sha256: Optional[Annotated[str, Text(pattern="[0-9a-f]{64}")]] = None
    lines: Optional[Annotated[int, Within(1, 100000)]] = None
    timeout_s: Annotated[float, Within(1, 86400)] = 1800


REQUEST_OF: dict[Channel, type] = {
    Channel.SLICE: SliceRequest,
    Channel.IMAGE: ImageRequest,
    Channel.FILE: FileRequest,
}


@dataclass(frozen=True)
class Instruction:
    """An instruction as read. ``request`` is the body it was made from."""

    id: str
    channel: Channel
    node_id: str
    status: InstructionStatus
    request: dict[str, Any]
    created_at: Optional[str] = None
    expires_at: Optional[str] = None
    claimed_at: Optional[str] = None
    finished_at: Optional[str] = None
    overdue: bool = False
    result: Optional[dict[str, Any]] = None
    error: Optional[str] = None


@dataclass(frozen=True)
class InstructionList:
    requests: list[Instruction] = field(default_factory=list)


@dataclass(frozen=True)
class InstructionUpdate:
    """``PUT /api/v1/agent/{channel}-requests/{id}``: compare-and-set, as for tasks."""

    node_id: Annotated[str, NodeId]
    claim_token: Annotated[str, Token]
    from_status: InstructionStatus
    status: InstructionStatus
    result: Optional[dict[str, Any]] = None
    error: Optional[Annotated[str, Text(0, 65536)]] = None
