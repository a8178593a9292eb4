"""The short form of ``make chaos``: one wave of random faults over a fleet that works."""

from __future__ import annotations

import pytest

from tests.faults import chaos
from tests.faults.fleet import Fleet

SEED = 20261130
WAVE_S = 30.0


@pytest.mark.timeout(420)
def test_a_wave_of_random_faults_loses_nothing(fleet: Fleet) -> None:
    sums = chaos.run(fleet, SEED, WAVE_S, WAVE_S)
    print(sums)
    assert sums.found == []
    assert sums.tasks >= 10
    assert len(sums.met) >= 4
