"""Where pending tasks go: a pure decision over one snapshot.

Highest priority first, oldest first, each to the first node that fits; nodes in the order of how busy they were
when the decision began. Tasks that need the same look at each node once: what does not change during a decision
(labels, vendors, health) is asked once per need and node, and a node that has too little left for a need is not
asked for that need again, since nothing grows meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runtime.protocol.hardware import Gpu
from runtime.server.services.placement.constraints import LEFT, NODE, choose, static_cards
from runtime.server.services.placement.model import Assignment, Candidate, Need, Pick, Site


@dataclass
class _Queue:
    """The nodes that would do for a need, with the cards that would; those before ``first`` are too full by now."""

    sites: list[tuple[Site, tuple[Gpu, ...]]]
    first: int = 0


def decide(candidates: Iterable[Candidate], sites: Mapping[str, Site]) -> list[Assignment]:
    """Assignments in the order in which they were decided. ``sites`` are used up: make them anew each time."""
    fields: dict[Need, _Queue] = {}
    queues: dict[Need, _Queue] = {}
    made: list[Assignment] = []
    for candidate in sorted(candidates, key=lambda one: (-one.priority, one.created_at, one.uid)):
        need = candidate.need
        queue = queues.get(need)
        if queue is None:
            static = dataclasses.replace(need, cpus=0, memory_mib=0, host_ports=())
            there = fields.get(static)
            if there is None:
                there = fields[static] = _Queue(_static_sites(static, sites))
            while there.first < len(there.sites) and _full(static, *there.sites[there.first]):
                there.first += 1
            queue = queues[need] = _Queue(there.sites, there.first)
        found = _first_fit(candidate, queue)
        if found is not None:
            site, picks = found
            site.take(need, picks)
            made.append(Assignment(candidate, site.view.node_id, picks))
    return made


def _static_sites(need: Need, sites: Mapping[str, Site]) -> list[tuple[Site, tuple[Gpu, ...]]]:
    asked = [constraint for constraint in NODE if constraint.wants(need)]
    if need.node_id is not None:
        sites = {need.node_id: sites[need.node_id]} if need.node_id in sites else {}
    found = []
    # Where engine and model are, before all; then least busy first, so that single tasks spread over the fleet.
    for _, site in sorted(sites.items(), key=lambda one: (one[1].lacks(need), one[1].tasks, one[0])):
        if not all(constraint.holds(need, site) for constraint in asked):
            continue
        cards = static_cards(need.cards, site) if need.cards is not None else ()
        if not _full(need, site, cards):
            found.append((site, cards))
    return found


def _full(need: Need, site: Site, cards: tuple[Gpu, ...]) -> bool:
    """Nothing of this static need fits any more, however little else it asks for."""
    if site.tasks >= site.view.slots_total:
        return True
    return need.cards is not None and choose(need.cards, cards, site) is None


def _first_fit(candidate: Candidate, queue: _Queue) -> tuple[Site, tuple[Pick, ...]] | None:
    need = candidate.need
    sites = queue.sites
    while queue.first < len(sites):
        site, cards = sites[queue.first]
        picks = _fit(need, site, cards)
        if picks is None:
            queue.first += 1
        elif site.view.node_id in candidate.excluded:
            break
        else:
            return site, picks
    # This task leaves the first node out, which others of the same need still use.
    for site, cards in sites[queue.first + 1 :]:
        if site.view.node_id not in candidate.excluded:
            picks = _fit(need, site, cards)
            if picks is not None:
                return site, picks
    return None


def _fit(need: Need, site: Site, cards: tuple[Gpu, ...]) -> tuple[Pick, ...] | None:
    for constraint in LEFT:
        if constraint.wants(need) and not constraint.holds(need, site):
            return None
    return choose(need.cards, cards, site) if need.cards is not None else ()
