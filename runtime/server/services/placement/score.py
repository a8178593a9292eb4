"""How well a node fits: which of its cards a task gets, and what the nodes that would do are compared by. Pure.

Tightest fit first, so that what is big stays whole for those who need it: the smallest cards, then the node that has
fewest of them left; a task without cards keeps away from nodes whose cards are free. Then where the image is, where the
model is, where its cards are linked, where least is done; the name last, so that a decision is always the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runtime.protocol.hardware import Gpu
from runtime.protocol.vendors import VIRTUAL
from runtime.server.services.placement.model import CardNeed, Need, Pick, Site


class Score(NamedTuple):
    """The smaller, the better; the first that differs decides.

    ``weight``: memory of the cards, in MiB; without cards, whether some are free. ``left``: such cards that stay free.
    ``apart``: its cards are not known to be linked.
    """

    weight: float
    left: int
    no_image: bool
    no_model: bool
    apart: bool
    tasks: int
    node_id: str

    def with_image(self) -> Score:
        return Score(self.weight, self.left, False, self.no_model, self.apart, self.tasks, self.node_id)


UNKNOWN = float("inf")
"""Of a card whose memory is not known: no reason to take it for a small one."""


def by_size(cards: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The smallest first, else in the node's order."""
    return tuple(sorted(cards, key=size))


def size(card: Gpu) -> float:
    return card.memory_total_mib if card.memory_total_mib is not None else UNKNOWN


def score(need: Need, site: Site, cards: Sequence[Gpu]) -> Score | None:
    """None: the node has too little left. ``cards``: those that would do, by size."""
    if site.tasks >= site.view.slots_total:
        return None
    weight, left, apart = 0.0, 0, False
    if need.cards is None:
        weight = float(_has_free_cards(site))
    else:
        free = _free(need.cards, cards, site)
        chosen = _chosen(need.cards, free, site)
        if chosen is None:
            return None
        weight, left = sum(map(size, chosen)), _room(need.cards, free, site) - len(chosen)
        apart = len(chosen) > 1 and not _linked(chosen, site)
    no_image, no_model = site.lacks(need)
    return Score(weight, left, no_image, no_model, apart, site.tasks, site.view.node_id)


def choose(wanted: CardNeed, cards: Sequence[Gpu], site: Site) -> tuple[Pick, ...] | None:
    """Cards for the task from those that would do (by size); None when too few are free, or too few of them linked."""
    chosen = _chosen(wanted, _free(wanted, cards, site), site)
    if chosen is None:
        return None
    picks = [site.pick(card, wanted) for card in chosen]
    return tuple(pick for pick in picks if pick is not None)


def _free(wanted: CardNeed, cards: Sequence[Gpu], site: Site) -> list[Gpu]:
    """Those that can be taken as wanted now, the best first."""
    held = site.held
    if wanted.slice is None and not wanted.mps:
        return [card for card in cards if card.uuid not in held]
    free = [card for card in cards if site.pick(card, wanted) is not None]
    if wanted.mps:
        # The fullest of those that are shared already: whoever wants a card for himself finds one.
        return sorted(free, key=lambda card: (size(card), -len(held.get(card.uuid, ()))))
    beside = {card.uuid: sum(other.parent_uuid == card.parent_uuid for other in free) for card in free}
    return sorted(free, key=lambda card: (size(card), beside[card.uuid]))


def _room(wanted: CardNeed, free: Sequence[Gpu], site: Site) -> int:
    """For how many such cards there is room."""
    if not wanted.mps:
        return len(free)
    return sum(site.mps_max - len(site.held.get(card.uuid, ())) for card in free)


def _chosen(wanted: CardNeed, free: Sequence[Gpu], site: Site) -> Sequence[Gpu] | None:
    count = wanted.count
    if len(free) < count:
        return None
    first = free[:count]
    if count == 1 or not site.view.nvlink_domains:
        return first if count == 1 or not wanted.same_nvlink_domain else None
    linked = [inside for domain in site.view.nvlink_domains if len(inside := _inside(domain, free)) >= count]
    if not linked:
        return None if wanted.same_nvlink_domain else first
    # Of several domains the one with the smallest cards, then the one that this leaves fewest of.
    best = min(linked, key=lambda inside: (sum(map(size, inside[:count])), len(inside)))[:count]
    larger = sum(map(size, best)) > sum(map(size, first))
    return first if larger and not wanted.same_nvlink_domain else best


def _inside(domain: frozenset[str], free: Sequence[Gpu]) -> list[Gpu]:
    return [card for card in free if card.uuid in domain]


def _linked(chosen: Sequence[Gpu], site: Site) -> bool:
    return any(all(card.uuid in domain for card in chosen) for domain in site.view.nvlink_domains)


def _has_free_cards(site: Site) -> bool:
    """Whether a card that is one stands free, whole or in part."""
    return any(
        card.vendor != VIRTUAL and (card.uuid not in site.held if card.parent_uuid is None else site.is_free(card))
        for card in site.view.gpus
        if card.uuid not in site.parents and card.uuid not in site.mig
    )
