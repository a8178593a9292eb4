"""Why a node or a card gets no work: the constraints of placement that are about it, and what its cards lack."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import sqlalchemy as sa

from runtime.protocol.hardware import Gpu
from runtime.protocol.nodes import CardHealth
from runtime.protocol.problems import Problem
from runtime.protocol.why import Why, WhyConstraint, WhyNode, WhySubject
from runtime.server.services import nodes as shown
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement import explain, snapshot
from runtime.server.services.placement.constraints import troubled
from runtime.server.services.placement.model import Candidate, CardNeed, Need, Site
from runtime.server.services.tasks.why import holders

_OF_NODE = ("online", "schedulable", "driver", "collector", "slots")
_OF_CARD = ("online", "schedulable", "collector", "slice", "health", "free")


class Nodes(Protocol):
    def view(self, node_id: str) -> NodeView | None: ...
    def views(self) -> Sequence[NodeView]: ...


def of_node(connection: sa.Connection, node_id: str, nodes: Nodes, mps_max: int) -> Why:
    """Whether the node takes new work, and what keeps it and its cards from that. Raises Problem node_not_found."""
    view = nodes.view(node_id)
    if view is None:
        raise shown.not_found(node_id)
    site = snapshot.sites(connection, [view], mps_max)[node_id]
    need = Need(cards=CardNeed(1) if view.gpus else None)
    found = _explained(connection, need, site, _OF_NODE)
    lacks = [one.text for one in found.constraints if not one.ok]
    troubles = list(dict.fromkeys(troubled(gpu, site).text for gpu in view.gpus if not site.healthy(gpu)))
    words = "; ".join([*lacks, *troubles]) or "nothing keeps it from new work"
    summary = f"{node_id} {'takes no new work' if lacks else 'takes new work'}: {words}."
    change = explain.smallest_change([found])
    return Why(WhySubject("node", node_id), view.state.value, summary, None, not lacks, [found], change)


def of_card(connection: sa.Connection, uuid: str, nodes: Nodes, mps_max: int) -> Why:
    """Whether the card or slice is given out, and what keeps it from that. Raises Problem gpu_not_found."""
    for view in nodes.views():
        card = next((gpu for gpu in view.gpus if gpu.uuid == uuid), None)
        if card is not None:
            return _of_card(connection, card, snapshot.sites(connection, [view], mps_max)[view.node_id])
    raise Problem("gpu_not_found", f"No node reports a card {uuid[:80]!r}; wanted a whole UUID, as in `gpus list`.")


def _of_card(connection: sa.Connection, card: Gpu, site: Site) -> Why:
    profile = None if card.parent_uuid is None else card.profile or ""
    need = Need(cards=CardNeed(1, vendor=card.vendor, uuids=(card.uuid,), slice=profile))
    found = _explained(connection, need, site, _OF_CARD)
    lacks = [one for one in found.constraints if not one.ok]
    node_id, words = site.view.node_id, _few(lacks)
    if site.healthy(card):
        state, since = CardHealth.OK, None
        summary = f"Card {card.uuid} of {node_id} is well" + (f"; {words}." if words else " and free.")
    else:
        trouble = troubled(card, site)
        state, since = trouble.health, trouble.since
        others = _few([one for one in lacks if one.code in ("online", "schedulable", "collector")])
        text = f"{trouble.text[:1].upper()}{trouble.text[1:]}" + (f"; {others}" if others else "")
        summary = f"{text}, on {node_id}; {trouble.help}."
    change = explain.smallest_change([found])
    return Why(WhySubject("gpu", card.uuid), state.value, summary, since, not lacks, [found], change)


def _explained(connection: sa.Connection, need: Need, site: Site, codes: Sequence[str]) -> WhyNode:
    """The constraints of these codes, as a task would meet them that wants exactly this."""
    node_id = site.view.node_id
    (found,) = explain.nodes(Candidate("", "", 0, 0, "", need), {node_id: site}, holders(connection, node_id))
    kept = [one for one in found.constraints if one.code in codes]
    return dataclasses.replace(found, distance=sum(not one.ok for one in kept), constraints=kept)


def _few(lacks: Sequence[WhyConstraint]) -> str:
    return "; ".join(one.text for one in lacks)
