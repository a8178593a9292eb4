"""What is shown of a node's cards: what was concluded of them, and ``unknown`` where nobody can look now.

A card tool that fails as a whole, and a node that is not heard, condemn no card; that each is well says nobody then.
Placement does not ask here: such a node gets no card work by constraints of its own. Pure.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from runtime.protocol.hardware import Gpu
from runtime.protocol.nodes import CardHealth, NodeState
from runtime.protocol.times import to_wire
from runtime.server.services.card_troubles import Trouble, plain
from runtime.server.services.node_view import NodeView


@dataclass(frozen=True)
class Blind:
    """Why nobody can say how a node's cards are. ``since``: RFC 3339."""

    since: str | None
    reason: str
    help: str


def blind(view: NodeView) -> Blind | None:
    """None while the node's cards can be judged."""
    if view.state is not NodeState.ONLINE:
        heard = to_wire(view.last_seen_at) if view.last_seen_at is not None else None
        return Blind(
            heard,
            f"it cannot be judged: its node is {view.state.value}",
            "bring the node back (`systemctl status heterofleet-agent` there): its first beat tells of its cards",
        )
    if view.collector_failing:
        since = to_wire(view.collector_since) if view.collector_since is not None else None
        return Blind(
            since,
            f"it cannot be judged: its node's card tool fails{_words(view)}",
            "`heterofleet-agent doctor` on its node says what to do; it is judged again with the next beat in which "
            "the tool works",
        )
    return None


def health(view: NodeView) -> dict[str, CardHealth]:
    """Card or slice -> the health to show."""
    known = {gpu.uuid: view.card_health.get(gpu.uuid, CardHealth.UNKNOWN) for gpu in view.gpus}
    if blind(view) is None:
        return known
    return {uuid: CardHealth.UNKNOWN if state is CardHealth.OK else state for uuid, state in known.items()}


def trouble(view: NodeView, card: Gpu) -> Trouble | None:
    """What is wrong with a card or slice, None while it is well: its own word, else that of the card that it is a part
    of, else why nobody can say."""
    for name in (card.uuid, card.parent_uuid):
        state = view.card_health.get(name, CardHealth.UNKNOWN) if name is not None else CardHealth.OK
        if name is not None and state is not CardHealth.OK:
            return view.card_troubles.get(name) or plain(name, state)
    why = blind(view)
    return Trouble(card.uuid, CardHealth.UNKNOWN, why.since, why.reason, why.help) if why is not None else None


def shown(view: NodeView) -> NodeView:
    """The node with its cards as they are shown."""
    troubles = {gpu.uuid: found for gpu in view.gpus if (found := trouble(view, gpu)) is not None}
    return dataclasses.replace(view, card_health=health(view), card_troubles=troubles)


def _words(view: NodeView) -> str:
    return f" ({view.collector_error})" if view.collector_error else ""
