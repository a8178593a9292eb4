"""What a beat says of cards: only what was measured."""

from __future__ import annotations

import pytest

from runtime.agent.content import card_members
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.protocol.heartbeat import Gpu, GpuDetection, GpuStats

CARD = Gpu("GPU-a", "nvidia", 0)
MEASURED = {"gpu_stats", "gpu_capabilities", "gpu_collect_failures"}


@pytest.mark.parametrize(
    ("snapshot", "told"),
    [
        (GpuSnapshot(), set()),
        (GpuSnapshot(gpus=[CARD]), {"gpus"}),  # of an earlier start
        (
            GpuSnapshot(gpus=[CARD], collector_error="it hangs", detection=[GpuDetection("nvidia", True)]),
            {"gpus", "gpu_collector_error", "gpu_detection"},
        ),
        (GpuSnapshot(gpus=[CARD], source="nvml", stats=[GpuStats("GPU-a")]), {"gpus", *MEASURED}),
        (
            GpuSnapshot(gpus=[CARD], source="nvidia-smi", collector_error="another vendor's tool hangs"),
            {"gpus", "gpu_collector_error", *MEASURED},
        ),
        (GpuSnapshot(gpus=[], source="none"), {"gpus", *MEASURED}),
    ],
    ids=["at-the-start", "known-before", "failing", "measured", "one-of-two", "no-cards"],
)
def test_what_was_not_measured_is_absent_and_not_empty(snapshot: GpuSnapshot, told: set[str]) -> None:
    assert {name for name, value in card_members(snapshot).items() if value is not None} == told
