"""The brake as a table: when the server doubts itself before it gives nodes up."""

from __future__ import annotations

import pytest

from runtime.server.services.brake import NodeSilence, Self, decide

UP = Self(up_for_s=1000)


def fleet(online: int, *silent_at: float) -> list[NodeSilence]:
    return [NodeSilence(500.0, False)] * online + [NodeSilence(moment, True) for moment in silent_at]


@pytest.mark.parametrize(
    ("nodes", "own", "causes"),
    [
        pytest.param(fleet(10), UP, (), id="all well"),
        pytest.param(fleet(10), Self(up_for_s=1), (), id="nothing to hold back at the start"),
        pytest.param(fleet(9, 400), UP, (), id="one of ten"),
        pytest.param(fleet(2, 400, 401), UP, (), id="half of four, but fewer than three"),
        pytest.param(fleet(7, 400, 401, 402), UP, (), id="exactly the fraction"),
        pytest.param(fleet(6, 400, 401, 402, 403), UP, ("many_silent",), id="above the fraction"),
        pytest.param(fleet(0, 400, 401, 402), UP, ("many_silent",), id="all three"),
        pytest.param(fleet(6, 300, 331, 362, 393), UP, (), id="as many, one after the other"),
        pytest.param(fleet(6, 300, 310, 320, 330), UP, ("many_silent",), id="within the window"),
        pytest.param(fleet(9, 400), Self(up_for_s=119), ("starting",), id="started lately"),
        pytest.param(fleet(9, 400), Self(1000, loop_lag_s=2.1), ("loop_lag",), id="own round late"),
        pytest.param(fleet(9, 400), Self(1000, loop_lag_s=1.9), (), id="own round nearly late"),
        pytest.param(fleet(9, 400), Self(1000, database_lag_s=3), ("database_lag",), id="database slow"),
        pytest.param(fleet(9, 400), Self(1000, clock_jump_s=-3600), ("clock_jump",), id="clock put back"),
        pytest.param(fleet(9, 400), Self(1000, clock_jump_s=30), ("clock_jump",), id="woken from suspend"),
    ],
)
def test_brake(nodes: list[NodeSilence], own: Self, causes: tuple[str, ...]) -> None:
    brake = decide(nodes, own, grace_s=120, fraction=0.3, at_least=3)
    assert brake.causes == causes
    assert brake.on == bool(causes)
    assert bool(brake.text) == bool(causes)
