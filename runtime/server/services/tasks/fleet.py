"""What a task's check asks about the fleet."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.protocol.vendors import VIRTUAL
from runtime.server.services.node_view import NodeView


def vendors_of(views: Iterable[NodeView]) -> frozenset[str]:
    """The vendors of real cards that the fleet has, lost and offline nodes included: they come back."""
    return frozenset(card.vendor for view in views for card in view.gpus if card.vendor != VIRTUAL)
