"""What is shown of a card: tiers by what is reported now (unknown is not bronze), and how it is cut."""

from __future__ import annotations

import pytest

from runtime.protocol.hardware import Gpu, GpuCapability
from runtime.protocol.nodes import NodeState
from runtime.server.services.node_view import NodeView
from runtime.server.services.nodes import _cards, _tier


@pytest.mark.parametrize(
    ("mig", "mps", "tier"),
    [
        (True, None, "gold"),
        (True, True, "gold"),
        (False, True, "silver"),
        (False, False, "bronze"),
        (False, None, None),
        (None, False, None),
        (None, True, None),
        (None, None, None),
    ],
)
def test_a_tier_needs_what_decides_it(mig: bool | None, mps: bool | None, tier: str | None) -> None:
    assert _tier(GpuCapability("GPU-1", mig, mps)) == tier


def test_without_a_report_there_is_no_tier() -> None:
    assert _tier(None) is None


@pytest.mark.parametrize(("vendor", "mode"), [("nvidia", "mig"), ("hygon", "hami")])
def test_a_card_that_is_cut_shows_how_while_nobody_holds_it(vendor: str, mode: str) -> None:
    gpus = (Gpu("whole", vendor), Gpu("cut", vendor), Gpu("slice", vendor, parent_uuid="cut"))
    shown = _cards(NodeView("gpu-a", NodeState.ONLINE, gpus=gpus), {}, {})
    assert [(one.uuid, one.mode) for one in shown] == [("whole", "whole"), ("cut", mode), ("slice", mode)]
