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
from runtime.server.services import cards_shown
from runtime.server.services import nodes as shown
from runtime.server.services.card_troubles import Trouble
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement import explain, snapshot
from runtime.server.services.placement.model import Candidate, CardNeed, Need, Site
from runtime.server.services.tasks.why import holders

_OF_NODE = ("online", "schedulable", "driver", "collector", "slots")
_OF_CARD = ("online", "schedulable", "collector", "slice", "mig_mode", "health", "free")


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
    lacks = [one for one in found.constraints if not one.ok]
    change = explain.smallest_change([found])
    summary = f"{node_id} {_takes(lacks, _troubles(view))}."
    return Why(WhySubject("node", node_id), view.state.value, summary, None, not lacks, [found], change)


def of_card(connection: sa.Connection, uuid: str, nodes: Nodes, mps_max: int) -> Why:
    """Whether the card or slice is given out, and what keeps it from that. Raises Problem gpu_not_found."""
    for view in nodes.views():
        card = next((gpu for gpu in view.gpus if gpu.uuid == uuid), None)
        if card is not None:
            return _of_card(
                connection, card, snapshot.sites(connection, [cards_shown.shown(view)], mps_max)[view.node_id]
            )
    raise Problem("gpu_not_found", f"No node reports a card {uuid[:80]!r}; wanted a whole UUID, as in `gpus list`.")


def _of_card(connection: sa.Connection, card: Gpu, site: Site) -> Why:
    profile = None if card.parent_uuid is None else card.profile or ""
    need = Need(cards=CardNeed(1, vendor=card.vendor, uuids=(card.uuid,), slice=profile))
    found = _explained(connection, need, site, _OF_CARD)
    lacks = [one for one in found.constraints if not one.ok]
    node_id, trouble = site.view.node_id, cards_shown.trouble(site.view, card)
    if trouble is None:
        state, since = CardHealth.OK, None
        summary = f"Card {card.uuid} of {node_id} is well{_otherwise(lacks)}{_noted(card, site.view)}."
    else:
        state, since = trouble.health, trouble.since
        told = () if cards_shown.blind(site.view) is not None else ("online", "collector")
        others = "; ".join(one.text for one in lacks if one.code in (*told, "schedulable"))
        text = f"{trouble.text[:1].upper()}{trouble.text[1:]}" + (f"; {others}" if others else "")
        summary = f"{text}, on {node_id}; {trouble.help}{_noted(card, site.view)}."
    change = explain.smallest_change([found])
    return Why(WhySubject("gpu", card.uuid), state.value, summary, since, not lacks, [found], change)


def _explained(connection: sa.Connection, need: Need, site: Site, codes: Sequence[str]) -> WhyNode:
    """The constraints of these codes, as a task would meet them that wants exactly this."""
    node_id = site.view.node_id
    (found,) = explain.nodes(Candidate("", "", 0, 0, "", need), {node_id: site}, holders(connection, node_id))
    kept = [one for one in found.constraints if one.code in codes]
    return dataclasses.replace(found, distance=sum(not one.ok for one in kept), constraints=kept)


def _troubles(view: NodeView) -> list[Trouble]:
    """Each once: what is wrong with a card is wrong with its slices, and what keeps all from being judged is one."""
    found: dict[str, Trouble] = {}
    for gpu in view.gpus:
        trouble = cards_shown.trouble(view, gpu)
        if trouble is not None:
            found.setdefault(trouble.card if trouble.health is not CardHealth.UNKNOWN else trouble.reason, trouble)
    return list(found.values())


def _takes(lacks: Sequence[WhyConstraint], troubles: Sequence[Trouble]) -> str:
    """Whether the node takes new work. What has no cards knows nothing of a card tool that fails, or of sick cards."""
    blind = any(trouble.health is CardHealth.UNKNOWN for trouble in troubles)
    texts = [one.text for one in lacks if one.code != "collector" or not blind]  # the cards' words say it
    words = "; ".join([*texts, *(_of_cards(trouble) for trouble in troubles)])
    if not words:
        return "takes new work: nothing keeps it from new work"
    if [one.code for one in lacks] == ["collector"]:
        return f"takes new work, but none with cards: {words}"
    if lacks:
        return f"takes no new work: {words}"
    return f"takes new work, but not on each of its cards: {words}"


def _of_cards(trouble: Trouble) -> str:
    if trouble.health is not CardHealth.UNKNOWN:
        return trouble.text
    since = f" since {trouble.since}" if trouble.since else ""
    return f"its cards are unknown{since}: {trouble.reason.replace('it cannot', 'they cannot', 1)}; {trouble.help}"


def _otherwise(lacks: Sequence[WhyConstraint]) -> str:
    """What else keeps a card that is well from being given out."""
    found = []
    for one in lacks:
        if one.code == "free":
            # Without evidence it is not asked who holds it: it is not given out whole in any case.
            found += [f"held by {' and '.join(row['held_by']) or 'somebody'}" for row in one.evidence or ()]
        elif one.code == "slice":
            found.append("cut into slices, and given in those only")
        elif one.code == "mig_mode":
            found.append("in MIG mode, and given in slices only: ask for `slice`, or turn MIG off")
        else:
            found.append(one.text)
    if not found:
        return " and free"
    return f", but {'; '.join(found)}"


def _noted(card: Gpu, view: NodeView) -> str:
    """What its node tells of it beside, which condemns it not."""
    notes = [note.text for note in view.card_notes if note.uuid in (card.uuid, card.parent_uuid)]
    return f"; its node tells of it: {'; '.join(notes)}" if notes else ""
