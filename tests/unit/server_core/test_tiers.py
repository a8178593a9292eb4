"""Tiers by what is reported now; unknown is not bronze."""

from __future__ import annotations

import pytest

from runtime.protocol.hardware import GpuCapability
from runtime.server.services.nodes import _tier


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
