"""Why a node's cards do or do not fit: each constraint with what the cards show for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runtime.protocol.hardware import Gpu
from runtime.protocol.why import WhyConstraint
from runtime.server.services.card_troubles import Trouble
from runtime.server.services.placement.constraints import (
    CARDS,
    CardConstraint,
    asked_of,
    static_cards,
    troubled,
)
from runtime.server.services.placement.model import CardNeed, Site
from runtime.server.services.placement.score import choose

HEALTH = "health"
NAMED = 3
"""So many cards are named in a sentence; all of them are in the evidence."""

Holders = Mapping[str, Sequence[str]]
"""Whole card or parent -> who holds it or a part of it, in words."""


def of_cards(wanted: CardNeed, site: Site, holders: Holders) -> list[WhyConstraint]:
    """All constraints on cards. Of a task that names its cards those alone are asked, and whether they are well is
    asked of those that are of the wanted kind: that others are well would hide what the task waits for."""
    asked = asked_of(wanted, site)
    wants = [one for one in CARDS if one.wants(wanted)]
    kind = [card for card in asked if all(one.holds(card, wanted, site) for one in wants if one.code != HEALTH)]
    found = [_one(one, wanted, site, (kind or asked) if one.code == HEALTH else asked) for one in wants]
    return [*found, *_together(wanted, site, asked, holders)]


def evidence_of(trouble: Trouble) -> dict[str, Any]:
    """As a member of a health constraint's evidence."""
    return {
        "card": trouble.card,
        "have": trouble.health.value,
        "since": trouble.since,
        "reason": trouble.reason,
        "help": trouble.help,
    }


def holding(card: Gpu, holders: Holders) -> list[str]:
    """Who holds the card, or what it is a part of."""
    return list(holders.get(card.parent_uuid or card.uuid, ()))


def _one(constraint: CardConstraint, wanted: CardNeed, site: Site, asked: Sequence[Gpu]) -> WhyConstraint:
    lacking = [card for card in asked if not constraint.holds(card, wanted, site)]
    have = len(asked) - len(lacking)
    ok = have >= wanted.count
    text = f"{constraint.text(have, wanted)}, {wanted.count} wanted"
    evidence: list[dict[str, Any]]
    if constraint.code == HEALTH:
        troubles = list(dict.fromkeys(troubled(card, site) for card in lacking))
        evidence = [evidence_of(trouble) for trouble in troubles]
        text += _named(trouble.text for trouble in troubles) if not ok else ""
    else:
        evidence = _by_value((constraint.have(card, site), card.uuid) for card in lacking)
        text += _named(dict.fromkeys(map(constraint.said, lacking))) if constraint.said is not None and not ok else ""
    if constraint.code == "uuids":
        here = {card.uuid for card in asked}
        evidence = [{"card": uuid, "have": "not on this node"} for uuid in wanted.uuids or () if uuid not in here]
    return WhyConstraint(constraint.code, ok, have, constraint.want(wanted), text, evidence or None)


def _together(wanted: CardNeed, site: Site, asked: Sequence[Gpu], holders: Holders) -> list[WhyConstraint]:
    """The cards that hold all of it at once; those of them that are free; and whether they are linked."""
    matching, count = static_cards(wanted, site), wanted.count
    taken = [card for card in matching if site.pick(card, wanted) is None]
    free = len(matching) - len(taken)
    lacks = [
        {
            "card": card.uuid,
            "lacks": [one.code for one in CARDS if one.wants(wanted) and not one.holds(card, wanted, site)],
        }
        for card in asked
        if card not in matching
    ]
    held = [{"card": card.uuid, "held_by": holding(card, holders)} for card in taken]
    text = f"{free} of those cards {'is' if free == 1 else 'are'} free, {count} wanted"
    if free < count:
        text += _named(f"{one['card']} is held by {' and '.join(one['held_by']) or 'somebody'}" for one in held)
    having = "1 card has" if len(matching) == 1 else f"{len(matching)} cards have"
    matched = f"{having} all that is wanted, {count} wanted"
    found = [
        WhyConstraint("cards", len(matching) >= count, len(matching), count, matched, lacks or None),
        WhyConstraint("free", free >= count, free, count, text, held or None),
    ]
    if wanted.same_nvlink_domain and count > 1:
        linked = choose(wanted, matching, site) is not None
        domains = [sorted(domain) for domain in site.view.nvlink_domains]
        known = "no domain holds enough free cards" if domains else "its NVLink topology is unknown"
        text = "enough free cards are in one NVLink domain" if linked else known
        found.append(WhyConstraint("nvlink_domain", linked, domains or None, count, text, domains or None))
    return found


def _by_value(pairs: Iterable[tuple[Any, str]]) -> list[dict[str, Any]]:
    """What cards show instead, each value once."""
    found: dict[Any, list[str]] = {}
    for value, uuid in pairs:
        found.setdefault(value, []).append(uuid)
    return [{"have": value, "cards": uuids} for value, uuids in found.items()]


def _named(sentences: Iterable[str]) -> str:
    """The first of them, to be added to a sentence."""
    every = list(sentences)
    if not every:
        return ""
    more = f", and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return f": {', '.join(every[:NAMED])}{more}"
