"""A sleeping task that shall run again gets the very cards that it had, or it waits: the decision and its reasons.

Both ask the same questions of each card, so they never disagree. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.protocol.hardware import Gpu
from runtime.protocol.why import WhyConstraint, WhyNode
from runtime.server.services.placement.constraints import troubled
from runtime.server.services.placement.explain_cards import HEALTH, evidence_of, holding
from runtime.server.services.placement.model import CardNeed, Pick, Site, fits_shape


@dataclass(frozen=True)
class Sleeper:
    """``cards``: what its attempt was given, as stored (``uuid`` and more)."""

    uid: str
    attempt: int
    node_id: str
    cards: list[dict[str, Any]]
    need: CardNeed


def same_cards(sleeper: Sleeper, site: Site) -> list[Pick] | None:
    """The cards that the sleeper had, all of them; None while one is gone, not well or not free."""
    picks: list[Pick] = []
    for shown in sleeper.cards:
        card = _card(shown, site)
        if card is None or not _has_its_shape(card, sleeper, site) or not site.healthy(card):
            return None
        pick = site.pick(card, sleeper.need)
        if pick is None:
            return None
        picks.append(pick)
    site.hold(picks)
    return picks


def explain(sleeper: Sleeper, site: Site | None, holders: Mapping[str, Sequence[str]]) -> WhyNode:
    """What each of its cards lacks. ``holders``: whole card or parent's uuid -> who holds (a part of) it, in words."""
    found: list[WhyConstraint] = []
    for shown in sleeper.cards:
        uuid = shown["uuid"]
        card = _card(shown, site) if site is not None else None
        there = card is not None
        text = f"card {uuid} is " + ("there" if there else f"not among the cards that {sleeper.node_id} reports")
        found.append(WhyConstraint("uuids", there, there, uuid, text))
        if site is None or card is None:
            continue
        whole = _has_its_shape(card, sleeper, site)
        text = f"card {uuid} " + ("has the shape that it had" if whole else _other_shape(card, site))
        found.append(WhyConstraint("slice", whole, whole, sleeper.need.slice or "whole card", text))
        trouble = None if site.healthy(card) else troubled(card, site)
        health, text = ("ok", f"card {uuid} is ok") if trouble is None else (trouble.health.value, trouble.text)
        evidence = None if trouble is None else [evidence_of(trouble)]
        found.append(WhyConstraint(HEALTH, trouble is None, health, "ok", text, evidence))
        free = site.pick(card, sleeper.need) is not None
        by = holding(card, holders)
        held = f"held by {', '.join(by)}" if by else "held"
        text = f"card {uuid} is " + ("free" if free else held)
        found.append(WhyConstraint("free", free, free, True, text, by or None))
    return WhyNode(sleeper.node_id, sum(not one.ok for one in found), found)


def _has_its_shape(card: Gpu, sleeper: Sleeper, site: Site) -> bool:
    return fits_shape(card, sleeper.need, site.parents) and card.uuid not in site.mig


def _other_shape(card: Gpu, site: Site) -> str:
    uncut = card.uuid in site.mig and card.uuid not in site.parents
    return "is in MIG mode now" if uncut else "was cut into slices, or was made anew"


def _card(shown: Mapping[str, Any], site: Site) -> Gpu | None:
    return next((card for card in site.view.gpus if card.uuid == shown["uuid"]), None)
