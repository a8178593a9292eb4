"""Why a task is where it is: the decision's own constraints, asked all and on every node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runtime.protocol.why import SmallestChange, WhyConstraint, WhyNode
from runtime.server.services.placement.constraints import LEFT, NODE
from runtime.server.services.placement.explain_cards import HEALTH, Holders, of_cards
from runtime.server.services.placement.model import Candidate, Site


def nodes(
    candidate: Candidate, sites: Mapping[str, Site], holders: Mapping[str, Holders] | None = None
) -> list[WhyNode]:
    """Every node with every constraint, the nearest miss first. ``holders``: by node, who holds which card."""
    found = []
    for node_id in sorted(sites):
        site, wanted = sites[node_id], candidate.need.cards
        constraints = _of_node(candidate, site)
        if wanted is not None:
            constraints += of_cards(wanted, site, (holders or {}).get(node_id, {}))
        found.append(WhyNode(node_id, sum(not one.ok for one in constraints), constraints))
    return sorted(found, key=lambda node: (node.distance, node.node_id))


def smallest_change(found: Iterable[WhyNode]) -> SmallestChange | None:
    """The first thing to change on the node that lacks least; None when one fits or there is none."""
    nearest = next(iter(found), None)
    if nearest is None or nearest.distance == 0:
        return None
    failing = [one for one in nearest.constraints if not one.ok]
    first = failing[0]
    others = list(dict.fromkeys(one.code for one in failing[1:]))
    more = f" (and then: {', '.join(others)})" if others else ""
    helps = dict.fromkeys(one["help"] for one in first.evidence or ()) if first.code == HEALTH else {}
    help_ = f"; {'; '.join(helps)}" if helps else ""
    return SmallestChange(first.code, nearest.node_id, f"on {nearest.node_id}: {first.text}{more}{help_}")


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
