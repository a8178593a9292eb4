"""What the server knows of one node at one moment, as placement and the API read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from runtime.protocol.hardware import Gpu, GpuCapability, GpuNote
from runtime.protocol.nodes import CardHealth, Cordon, NodeState
from runtime.server.services.card_troubles import Trouble


@dataclass(frozen=True)
class NodeView:
    """A snapshot: never changed, replaced by the next beat or the next decision about the node.

    Memory in MiB. None means not known: ``images`` and ``live_task_ids`` None is "could not look", never
    "none", and so it is with ``engines`` (names) and ``models`` (names and paths of those that are not incomplete).
    ``gpus`` holds the reported cards and slices, and cards that a working list no longer names (their
    health says so); ``cards_known``: whether it has told of its cards at all. ``card_health`` has an entry for
    each of them, ``card_troubles`` for those that are not well: what was concluded, whether or not anybody can look
    now (what is shown of them: ``cards_shown``). ``collector_error``: the words of a card tool that fails as a whole.
    ``run`` and ``boot_id`` are those of the newest beat.
    """

    node_id: str
    state: NodeState
    schedulable: bool = True
    draining: bool = False
    cordon: Cordon | None = None
    labels: dict[str, str] = field(default_factory=dict)
    hostname: str | None = None
    mgmt_addr: str | None = None
    docker_available: bool | None = None
    exec_mode: str | None = None
    process_driver: bool = False
    slots_total: int = 0
    cpu_cores: int | None = None
    memory_total_mib: int | None = None
    gpus: tuple[Gpu, ...] = ()
    cards_known: bool = False
    card_health: dict[str, CardHealth] = field(default_factory=dict)
    card_troubles: dict[str, Trouble] = field(default_factory=dict)
    capabilities: dict[str, GpuCapability] = field(default_factory=dict)
    collector_failing: bool = False
    collector_error: str | None = None
    collector_since: datetime | None = None
    card_notes: tuple[GpuNote, ...] = ()
    nvlink_domains: tuple[frozenset[str], ...] = ()
    images: frozenset[str] | None = None
    engines: frozenset[str] | None = None
    models: frozenset[str] | None = None
    last_seen_at: datetime | None = None
    instance_id: str | None = None
    run: int = 0
    boot_id: str | None = None
    live_task_ids: frozenset[str] | None = None
