"""Where pending tasks go: a pure decision over one snapshot.

Highest priority first, oldest first, each to the node that fits best by then (:mod:`score`). Tasks that need the same
share one ranking of the nodes: what does not change during a decision (labels, vendors, health) is asked once per need
and node, a node is scored again only when something was placed there, and one that has too little left for a need is
not asked for that need again, since nothing grows meanwhile.
"""

from __future__ import annotations

import copy
import dataclasses
import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from runtime.protocol.hardware import Gpu
from runtime.server.services.placement.constraints import LEFT, NODE, static_cards
from runtime.server.services.placement.model import Assignment, Candidate, Need, Pick, Site
from runtime.server.services.placement.score import Score, by_size, choose, score

Fields = list[tuple[Site, tuple[Gpu, ...]]]
"""The nodes that would do for a need while they were empty, with the cards that would."""


def decide(candidates: Iterable[Candidate], sites: Mapping[str, Site]) -> list[Assignment]:
    """Assignments in the order in which they were decided. ``sites`` are used up: make them anew each time."""
    changed: list[str] = []
    images = _nodes_by_image(sites)
    common: dict[Need, _Ranking] = {}
    rankings: dict[Need, _Ranking] = {}
    made: list[Assignment] = []
    for candidate in sorted(candidates, key=lambda one: (-one.priority, one.created_at, one.uid)):
        need = candidate.need
        ranking = rankings.get(need)
        if ranking is None:
            static = dataclasses.replace(need, image=None, cpus=0, memory_mib=0, host_ports=())
            shared = common.get(static)
            if shared is None:
                shared = common[static] = _Ranking(static, _field(static, sites), changed)
            ranking = shared if need == static else shared.narrowed(need, images.get(need.image or "", ()))
            rankings[need] = ranking
        found = ranking.best(candidate.excluded)
        if found is not None:
            site, picks = found
            site.take(need, picks)
            changed.append(site.view.node_id)
            made.append(Assignment(candidate, site.view.node_id, picks))
    return made


def _nodes_by_image(sites: Mapping[str, Site]) -> dict[str, list[str]]:
    """Image -> the nodes that have it."""
    found: dict[str, list[str]] = defaultdict(list)
    for node_id, site in sites.items():
        for image in site.view.images or ():
            found[image].append(node_id)
    return found


def _field(need: Need, sites: Mapping[str, Site]) -> Fields:
    asked = [constraint for constraint in NODE if constraint.wants(need)]
    if need.node_id is not None:
        sites = {need.node_id: sites[need.node_id]} if need.node_id in sites else {}
    return [
        (site, by_size(static_cards(need.cards, site)) if need.cards is not None else ())
        for site in sites.values()
        if all(constraint.holds(need, site) for constraint in asked)
    ]


class _Ranking:
    """The nodes for one need, the best first; true again at each question, whatever was placed in between.

    ``changed`` grows by the node of each placement. The heap holds every score that a node had; the one that counts
    stands in ``_scores``, None: too little left.
    """

    def __init__(self, need: Need, field: Fields, changed: Sequence[str]) -> None:
        self._need = need
        self._field = field
        self._changed = changed
        self._seen = len(changed)
        self._place = {site.view.node_id: number for number, (site, _) in enumerate(field)}
        self._scores: list[Score | None] = [score(need, site, cards) for site, cards in field]
        self._heap = [(own, number) for number, own in enumerate(self._scores) if own is not None]
        self._shared: _Ranking | None = None
        self._with_image: frozenset[int] = frozenset()
        heapq.heapify(self._heap)

    def narrowed(self, need: Need, there: Iterable[str]) -> _Ranking:
        """The same for a need that also wants room, or an image, which is ``there``: all scores but theirs are
        those of the need without it, and are made once for all such needs."""
        self._refresh()
        self._heap = [(own, number) for own, number in self._heap if own == self._scores[number]]
        heapq.heapify(self._heap)  # without what was true once: it would be copied, too
        other = copy.copy(self)
        other._need, other._shared = need, self
        other._scores, other._heap = list(self._scores), list(self._heap)
        other._with_image = frozenset(self._place[node_id] for node_id in there if node_id in self._place)
        for number in other._with_image:
            other._score_again(number)
        return other

    def best(self, excluded: frozenset[str]) -> tuple[Site, tuple[Pick, ...]] | None:
        """The node that fits best now, with the cards there; None: none does."""
        self._refresh()
        heap, left_out = self._heap, []
        found = None
        while heap and found is None:
            own, number = heap[0]
            site, cards = self._field[number]
            if own != self._scores[number]:
                heapq.heappop(heap)
            elif not self._has_room(site):
                heapq.heappop(heap)
                self._scores[number] = None
            elif site.view.node_id in excluded:
                left_out.append(heapq.heappop(heap))
            else:
                picks = choose(self._need.cards, cards, site) if self._need.cards is not None else ()
                assert picks is not None, "a node that has a score has the cards"
                found = site, picks
        for entry in left_out:
            heapq.heappush(heap, entry)
        return found

    def _refresh(self) -> None:
        if self._shared is not None:
            self._shared._refresh()
        if self._heap:
            for node_id in set(self._changed[self._seen :]):
                number = self._place.get(node_id)
                if number is not None:
                    self._score_again(number)
        self._seen = len(self._changed)

    def _score_again(self, number: int) -> None:
        if self._scores[number] is None:
            return
        own = self._shared._scores[number] if self._shared is not None else score(self._need, *self._field[number])
        if own is not None and number in self._with_image:
            own = own.with_image()
        self._scores[number] = own
        if own is not None:
            heapq.heappush(self._heap, (own, number))

    def _has_room(self, site: Site) -> bool:
        return all(constraint.holds(self._need, site) for constraint in LEFT if constraint.wants(self._need))
