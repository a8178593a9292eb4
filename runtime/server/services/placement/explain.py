"""Why a task is where it is: the decision's own constraints, asked all and on every node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runtime.protocol.why import SmallestChange, WhyConstraint, WhyNode
from runtime.server.services.placement.constraints import CARDS, LEFT, NODE, choose, static_cards
from runtime.server.services.placement.model import Candidate, CardNeed, Need, Site


def nodes(candidate: Candidate, sites: Mapping[str, Site]) -> list[WhyNode]:
    """Every node with every constraint, the nearest miss first."""
    found = []
    for node_id in sorted(sites):
        constraints = [*_of_node(candidate, sites[node_id]), *_of_cards(candidate.need, sites[node_id])]
        found.append(WhyNode(node_id, sum(not one.ok for one in constraints), constraints))
    return sorted(found, key=lambda node: (node.distance, node.node_id))


def smallest_change(found: Iterable[WhyNode]) -> SmallestChange | None:
    """The first thing to change on the node that lacks least; None when one fits or there is none."""
    nearest = next(iter(found), None)
    if nearest is None or nearest.distance == 0:
        return None
    failing = [one for one in nearest.constraints if not one.ok]
    more = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
    return SmallestChange(failing[0].code, nearest.node_id, f"on {nearest.node_id}: {failing[0].text}{more}")


def summary(found: list[WhyNode]) -> str:
    """One sentence for a task that waits."""
    if not found:
        return "No node is registered."
    fitting = [node.node_id for node in found if node.distance == 0]
    if fitting:
        return f"It fits on {fitting[0]} and waits for the next round, or for tasks before it."
    nearest = found[0]
    failing = next(one for one in nearest.constraints if not one.ok)
    return f"No node of {len(found)} fits; nearest is {nearest.node_id}: {failing.text}."


def _of_node(candidate: Candidate, site: Site) -> list[WhyConstraint]:
    need = candidate.need
    found = [
        WhyConstraint(one.code, one.holds(need, site), one.have(need, site), one.want(need), one.text(need, site))
        for one in (*NODE, *LEFT)
        if one.wants(need)
    ]
    if candidate.excluded:
        left_out = site.view.node_id in candidate.excluded
        text = "the node handed this task back a short while ago" if left_out else "the node has not handed it back"
        found.append(WhyConstraint("excluded", not left_out, left_out, False, text))
    return found


def _of_cards(need: Need, site: Site) -> list[WhyConstraint]:
    wanted = need.cards
    if wanted is None:
        return []
    found = []
    for one in CARDS:
        if not one.wants(wanted):
            continue
        have = sum(one.holds(card, wanted, site) for card in site.view.gpus)
        text = one.sentence.format(have=have, want=one.want(wanted))
        text = f"{text}, {wanted.count} wanted"
        found.append(WhyConstraint(one.code, have >= wanted.count, have, one.want(wanted), text))
    found.extend(_together(wanted, site))
    return found


def _together(wanted: CardNeed, site: Site) -> list[WhyConstraint]:
    """The cards that hold all of it at once; those of them that are free; and whether they are linked."""
    matching = static_cards(wanted, site)
    holders = sorted(
        {row.gpu_uuid for card in matching for row in site.held.get(card.parent_uuid or card.uuid, {}).values()}
    )
    free = sum(site.pick(card, wanted) is not None for card in matching)
    count = wanted.count
    found = [
        WhyConstraint(
            "cards",
            len(matching) >= count,
            len(matching),
            count,
            f"{len(matching)} cards have all that is wanted, {count} wanted",
        ),
        WhyConstraint(
            "free", free >= count, free, count, f"{free} of those cards are free, {count} wanted", holders or None
        ),
    ]
    if wanted.same_nvlink_domain and count > 1:
        linked = choose(wanted, matching, site) is not None
        domains = [sorted(domain) for domain in site.view.nvlink_domains]
        known = "no domain holds enough free cards" if domains else "its NVLink topology is unknown"
        text = "enough free cards are in one NVLink domain" if linked else known
        found.append(WhyConstraint("nvlink_domain", linked, domains or None, count, text))
    return found
