"""Nodes and cards as the API shows them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.hardware import Gpu, GpuCapability, GpuStats
from runtime.protocol.heartbeat import Heartbeat
from runtime.protocol.nodes import Card, CardHealth, CardNote, Node, NodeState
from runtime.protocol.problems import Problem
from runtime.protocol.tasks import TaskWarning
from runtime.server.services import cards_shown, reservations
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement.model import mig_cards, slice_mode
from runtime.server.services.presence import Presence
from runtime.server.store.database import Database
from runtime.server.store.tables import gpu_allocations, tasks

SKEW_WARNING_S = 30.0


@dataclass(frozen=True)
class Use:
    """How a parent card is used: its mode, and task ids by card or slice."""

    mode: str | None = None
    tasks: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def read_node(db: Database, presence: Presence, node_id: str) -> Node:
    """Raises node_not_found."""
    shown = _shown(db, presence, [node_id])
    if not shown:
        raise not_found(node_id)
    with presence.locked(node_id):
        held = presence.held(node_id)
        models = held.sections.get("discovered_models") if held is not None else None
        scan = held.beat.models_scan if held is not None and held.beat is not None else None
    return dataclasses.replace(shown[0], discovered_models=models, models_scan=scan)


def read_nodes(db: Database, presence: Presence) -> list[Node]:
    """Every node, by id."""
    return _shown(db, presence, sorted(presence.node_ids()))


def read_cards(db: Database, presence: Presence) -> list[Card]:
    """Every card and slice of every node."""
    return [card for node in read_nodes(db, presence) for card in node.gpus or ()]


def read_card(db: Database, presence: Presence, uuid: str) -> Card:
    """Raises gpu_not_found."""
    for card in read_cards(db, presence):
        if card.uuid == uuid:
            return card
    raise Problem("gpu_not_found", f"No node reports a card {uuid[:80]!r}; wanted a whole UUID, as in `gpus list`.")


def not_found(node_id: str) -> Problem:
    """The refusal of a node id that nobody has."""
    return Problem("node_not_found", f"There is no node {node_id[:80]!r}.")


def _shown(db: Database, presence: Presence, node_ids: list[str]) -> list[Node]:
    uses = _uses(db, node_ids[0] if len(node_ids) == 1 else None)
    found = []
    for node_id in node_ids:
        with presence.locked(node_id):
            held = presence.held(node_id)
            if held is None:
                continue
            view, beat, seen = held.view(), held.beat, held.seen_wall
            sections = dict(held.sections)
        found.append(_node(view, beat, sections, seen, uses))
    return found


def _node(
    view: NodeView,
    beat: Heartbeat | None,
    sections: dict[str, Any],
    seen: float | None,
    uses: dict[tuple[str, str], Use],
) -> Node:
    skew = _skew(beat, seen)
    warnings = []
    if skew is not None and abs(skew) > SKEW_WARNING_S:
        direction = "ahead of" if skew > 0 else "behind"
        warnings.append(
            TaskWarning("clock_skew", f"The node's clock is {abs(skew):.0f} s {direction} the control plane's.")
        )
    if view.collector_failing:
        error = view.collector_error or "it failed several beats in a row"
        warnings.append(
            TaskWarning(
                "gpu_collector_failing", f"The card collector fails: {error}. Nobody can say how its cards are."
            )
        )
    warnings += _worth_knowing(beat)
    process = beat.process if beat is not None else None
    if process is not None and process.available and process.confined is False:
        text = "Plain processes run here without confinement: each reads whatever its user may (process_unconfined)."
        warnings.append(TaskWarning("processes_unconfined", text))
    # What cards measured counts while the node is heard: an old value must not look like one of now.
    measured = beat.gpu_stats if beat is not None and view.state is NodeState.ONLINE else None
    stats = {entry.uuid: entry for entry in measured or ()}
    return Node(
        id=view.node_id,
        state=view.state,
        schedulable=view.schedulable,
        cordon=view.cordon,
        draining=view.draining,
        instance_id=view.instance_id,
        run=view.run,
        hostname=view.hostname,
        last_seen_at=times.to_wire(view.last_seen_at) if view.last_seen_at is not None else None,
        agent=beat.agent if beat is not None else None,
        host=sections.get("host"),
        docker=beat.docker if beat is not None else None,
        exec_mode=view.exec_mode,
        drivers=beat.drivers if beat is not None else None,
        process=process,
        slots=beat.slots if beat is not None else None,
        gpus=_cards(view, stats, uses) if view.cards_known else None,
        labels=view.labels,
        fabrics=sections.get("fabrics"),
        hcas=sections.get("hcas"),
        engines=sections.get("engines"),
        clock_skew_s=round(skew, 3) if skew is not None else None,
        warnings=warnings,
    )


def _worth_knowing(beat: Heartbeat | None) -> list[TaskWarning]:
    """What the node tells of cards that condemns none: operators read it, placement does not."""
    notes = beat.gpu_notes if beat is not None else None
    return [
        TaskWarning(f"gpu_{note.code}", f"Card {note.uuid}: {note.text}.")
        for note in notes or ()
        if note.code != CardNote.UNIFIED_MEMORY.value
    ]


def _cards(view: NodeView, stats: dict[str, GpuStats], uses: dict[tuple[str, str], Use]) -> list[Card]:
    sliced = {gpu.parent_uuid for gpu in view.gpus if gpu.parent_uuid is not None} | mig_cards(view)
    health = cards_shown.health(view)
    return [_card(view, gpu, health[gpu.uuid], stats.get(gpu.uuid), uses, sliced) for gpu in view.gpus]


def _card(
    view: NodeView,
    gpu: Gpu,
    health: CardHealth,
    stats: GpuStats | None,
    uses: dict[tuple[str, str], Use],
    sliced: Iterable[str],
) -> Card:
    parent = gpu.parent_uuid or gpu.uuid
    use = uses.get((view.node_id, parent), Use())
    facts = {f.name: getattr(gpu, f.name) for f in dataclasses.fields(gpu)}
    return Card(
        **facts,
        memory_used_mib=stats.memory_used_mib if stats is not None else None,
        utilization_pct=stats.utilization_pct if stats is not None else None,
        temperature_c=stats.temperature_c if stats is not None else None,
        power_w=stats.power_w if stats is not None else None,
        node_id=view.node_id,
        health=health,
        tier=_tier(view.capabilities.get(parent)),
        mode=use.mode or (slice_mode(gpu.vendor) if parent in sliced else "whole"),
        allocated_to=sorted(use.tasks.get(gpu.uuid, ())),
    )


def _tier(capability: GpuCapability | None) -> str | None:
    """gold: MIG capable; silver: MPS capable; bronze: neither. Null while what decides it is not known."""
    if capability is None:
        return None
    if capability.mig_capable:
        return "gold"
    if capability.mig_capable is None or capability.mps_capable is None:
        return None
    return "silver" if capability.mps_capable else "bronze"


def _skew(beat: Heartbeat | None, seen: float | None) -> float | None:
    """Seconds that the node's clock is ahead of ours: data, and never part of a decision."""
    if beat is None or beat.sent_at is None or seen is None:
        return None
    try:
        return times.from_wire(beat.sent_at).timestamp() - seen
    except ValueError:
        return None


def _uses(db: Database, node_id: str | None) -> dict[tuple[str, str], Use]:
    held = gpu_allocations
    query = sa.select(held.c.node_id, held.c.parent_uuid, held.c.gpu_uuid, held.c.mode, held.c.uid, tasks.c.id).join(
        tasks, tasks.c.uid == held.c.uid, isouter=True
    )
    query = query.where(~reservations.RESERVES)  # no task's, and what it is to become is not what it is
    if node_id is not None:
        query = query.where(held.c.node_id == node_id)
    uses: dict[tuple[str, str], Use] = {}
    with db.read() as connection:
        for row in connection.execute(query):
            use = uses.setdefault((row.node_id, row.parent_uuid), Use(row.mode))
            use.tasks[row.gpu_uuid].append(row.id or row.uid)
    return uses
