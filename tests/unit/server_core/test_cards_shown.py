"""What is shown of cards that nobody can look at now: never that they are well."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from runtime.protocol.hardware import Gpu
from runtime.protocol.nodes import CardHealth, NodeState
from runtime.server.services import cards_shown
from runtime.server.services.card_troubles import Trouble
from runtime.server.services.node_view import NodeView

STATES = [CardHealth.OK, CardHealth.LOST, CardHealth.SUSPECT, CardHealth.DIRTY, CardHealth.UNKNOWN]
CARDS = tuple(Gpu(f"GPU-{number}", "nvidia", number) for number in range(len(STATES)))
SLICE = Gpu("MIG-0", "nvidia", parent_uuid="GPU-1")
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
FAILS: dict[str, Any] = {"collector_failing": True, "collector_error": "No devices were found", "collector_since": NOON}


def view(state: NodeState = NodeState.ONLINE, **facts: Any) -> NodeView:
    health = {card.uuid: health for card, health in zip(CARDS, STATES)}
    troubles = {"GPU-1": Trouble("GPU-1", CardHealth.LOST, None, "Xid 79", "reboot")}
    known = {"gpus": CARDS, "card_health": health, "card_troubles": troubles, "last_seen_at": NOON}
    return NodeView("gpu-a", state, **{**known, **facts})


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (view(), None),
        (view(collector_error="one failed"), None),
        (view(**FAILS), "it cannot be judged: its node's card tool fails (No devices were found)"),
        (view(NodeState.UNREACHABLE), "it cannot be judged: its node is unreachable"),
        (view(NodeState.LOST, **FAILS), "it cannot be judged: its node is lost"),
        (view(NodeState.OFFLINE), "it cannot be judged: its node is offline"),
    ],
)
def test_a_card_that_was_well_is_unknown_and_no_other_changes(seen: NodeView, reason: str | None) -> None:
    first = CardHealth.OK if reason is None else CardHealth.UNKNOWN
    assert list(cards_shown.health(seen).values()) == [first, *STATES[1:]]
    trouble = cards_shown.trouble(seen, CARDS[0])
    if reason is None:
        assert trouble is None
    else:
        assert trouble is not None and trouble.help
        assert trouble.text == f"card GPU-0 is unknown since 2026-01-01T12:00:00.000Z ({reason})"
    lost = cards_shown.trouble(seen, CARDS[1])
    assert lost is not None and (lost.health, lost.reason) == (CardHealth.LOST, "Xid 79")


def test_a_slice_has_the_trouble_of_its_card_first() -> None:
    seen = view(gpus=(*CARDS, SLICE), card_health={"GPU-1": CardHealth.LOST, "MIG-0": CardHealth.OK}, **FAILS)
    trouble = cards_shown.trouble(seen, SLICE)
    assert trouble is not None and trouble.card == "GPU-1"


def test_the_node_as_it_is_shown_has_no_well_card() -> None:
    shown = cards_shown.shown(view(**FAILS))
    assert CardHealth.OK not in shown.card_health.values()
    assert set(shown.card_troubles) == {card.uuid for card in CARDS}
