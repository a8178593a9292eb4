"""Which cards a node's failures name: both ends go by the same table."""

from __future__ import annotations

import pytest

from runtime.protocol.hardware import Gpu, GpuCollectFailure, named_as_failed

A, B = Gpu("GPU-a", "nvidia", 0), Gpu("GPU-b", "nvidia", 1)
B1 = Gpu("MIG-b1", "nvidia", 1, parent_uuid="GPU-b")


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        pytest.param(GpuCollectFailure("GPU-a", reason="lost"), {"GPU-a": "lost"}, id="by uuid"),
        pytest.param(GpuCollectFailure("MIG-b1", reason="lost"), {"MIG-b1": "lost"}, id="a slice by uuid"),
        pytest.param(GpuCollectFailure("GPU-z", reason="lost"), {"GPU-z": "lost"}, id="one that is not listed"),
        pytest.param(GpuCollectFailure(None, 1, "lost"), {"GPU-b": "lost"}, id="a slice has its card's index"),
        pytest.param(GpuCollectFailure("GPU-a", 1, "lost"), {"GPU-a": "lost"}, id="a uuid before an index"),
        pytest.param(GpuCollectFailure(None, 7, "lost"), {}, id="an index that no card has"),
        pytest.param(GpuCollectFailure(None, None, "lost"), {}, id="neither"),
        pytest.param(GpuCollectFailure("GPU-a"), {"GPU-a": "its tool names it as failed"}, id="without a word"),
    ],
)
def test_whom_a_failure_names(failure: GpuCollectFailure, named: dict[str, str]) -> None:
    assert named_as_failed([A, B, B1], [failure]) == named


def test_an_index_of_two_cards_names_neither() -> None:
    assert named_as_failed([A, Gpu("GPU-b", "nvidia", 0)], [GpuCollectFailure(None, 0, "lost")]) == {}
