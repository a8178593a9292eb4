"""A node's hardware as its heartbeat tells it: the host, cards and slices, InfiniBand and RoCE ports.

What a card is (:class:`Gpu`) changes seldom, what it measures (:class:`GpuStats`) with every beat. A value that was
not measured is absent (None here).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Optional

from runtime.protocol.constraints import Text, Within


@dataclass(frozen=True)
class Disk:
    """Free space in MiB; ``free_inodes`` where the file system counts them."""

    path: str
    total_mib: Optional[int] = None
    free_mib: Optional[int] = None
    free_inodes: Optional[int] = None


@dataclass(frozen=True)
class Host:
    """``cpu_percent``, ``memory_used_mib``, free disk and ``uptime_s`` are load, sent with every beat."""

    hostname: Optional[str] = None
    os: Optional[str] = None
    kernel: Optional[str] = None
    cpu_cores: Optional[int] = None
    cpu_percent: Optional[Annotated[float, Within()]] = None
    memory_total_mib: Optional[int] = None
    memory_used_mib: Optional[int] = None
    macs: Optional[list[str]] = None
    ips: Optional[list[str]] = None
    mgmt_addr: Optional[str] = None
    disks: Optional[list[Disk]] = None
    uptime_s: Optional[int] = None


@dataclass(frozen=True)
class Gpu:
    """One card or slice, as inventory: what does not change from beat to beat. Memory in MiB."""

    uuid: Annotated[str, Text(1, 200)]
    vendor: Annotated[str, Text(1, 40)]
    index: Optional[int] = None
    model: Optional[str] = None
    gpu_class: Optional[str] = field(default=None, metadata={"alias": "class"})
    memory_total_mib: Optional[int] = None
    pci_bus_id: Optional[str] = None
    numa_node: Optional[int] = None
    compute_capability: Optional[str] = None
    driver_version: Optional[str] = None
    parent_uuid: Optional[str] = None
    profile: Optional[str] = None
    gi_id: Optional[int] = None
    ci_id: Optional[int] = None


@dataclass(frozen=True)
class GpuStats:
    """What a card measures now: degrees Celsius, percent, MiB, watts."""

    uuid: str
    index: Optional[int] = None
    temperature_c: Optional[Annotated[float, Within()]] = None
    utilization_pct: Optional[Annotated[float, Within()]] = None
    memory_used_mib: Optional[int] = None
    power_w: Optional[Annotated[float, Within()]] = None


@dataclass(frozen=True)
class GpuCollectFailure:
    """A failure that is pinned on one card."""

    uuid: Optional[str] = None
    index: Optional[int] = None
    reason: str = ""


@dataclass(frozen=True)
class GpuDetection:
    """What one vendor's detector found. ``evidence``: fixture or hardware; ``loss_detection``: full,
    by_absence or none."""

    vendor: str
    found: bool
    why: str = ""
    evidence: str = "fixture"
    loss_detection: str = "none"


@dataclass(frozen=True)
class GpuCapability:
    uuid: str
    mig_capable: Optional[bool] = None
    mps_capable: Optional[bool] = None


@dataclass(frozen=True)
class GpuNote:
    """Something worth knowing of a card that condemns nothing. ``code``: :class:`~runtime.protocol.nodes.CardNote`;
    ``text``: a sentence with what is to be done."""

    uuid: str
    code: str
    text: str


@dataclass(frozen=True)
class GpuHolder:
    """A process or container that holds a card, or a slice where it is known which.

    ``ours``: it runs for a task of this node and control plane; False: for nobody or somebody else, so the card is not
    free; absent: not known, or nothing that keeps tasks off the card (a display, the daemon of MPS). Without ``pid``:
    memory in use that no process is seen to hold.
    """

    uuid: str
    pid: Optional[int] = None
    name: Optional[str] = None
    memory_mib: Optional[int] = None
    container_id: Optional[str] = None
    task_id: Optional[str] = None
    control_plane_id: Optional[str] = None
    ours: Optional[bool] = None


@dataclass(frozen=True)
class GpuTopology:
    """``nvlink_domains``: groups of uuids; ``numa``: uuid -> NUMA node."""

    nvlink_domains: list[list[str]] = field(default_factory=list)
    numa: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Hca:
    name: str
    port: Optional[int] = None
    state: Optional[str] = None
    rate_gbps: Optional[Annotated[float, Within()]] = None
    link_layer: Optional[str] = None
    gid_prefix: Optional[str] = None
    numa_node: Optional[int] = None
    fabric: Optional[str] = None


@dataclass(frozen=True)
class Fabric:
    """A label from agent.yaml, never derived."""

    name: str
    hcas: list[str] = field(default_factory=list)


def named_as_failed(gpus: Iterable[Gpu], failures: Iterable[GpuCollectFailure]) -> dict[str, str]:
    """Card or slice -> what its tool says of it, be it among ``gpus`` or not. By index only whole cards are meant."""
    by_index: dict[Optional[int], list[str]] = {}
    for gpu in gpus:
        if gpu.parent_uuid is None:
            by_index.setdefault(gpu.index, []).append(gpu.uuid)
    found = {}
    for failure in failures:
        uuid = failure.uuid
        if uuid is None and failure.index is not None:
            # An index moves on to the next card when one is lost: two that claim it are not told apart by it.
            meant = by_index.get(failure.index, [])
            uuid = meant[0] if len(meant) == 1 else None
        if uuid is not None:
            found[uuid] = failure.reason or "its tool names it as failed"
    return found
