"""Node states as a table: what the server concludes from when it heard a node."""

from __future__ import annotations

import pytest

from runtime.protocol.nodes import NodeState
from runtime.server.services.node_states import Heard, Limits, Reference, decide

LIMITS = Limits(unreachable_after_s=15, lost_after_s=60, offline_grace_s=600)
ONLINE, UNREACHABLE, LOST, OFFLINE = NodeState.ONLINE, NodeState.UNREACHABLE, NodeState.LOST, NodeState.OFFLINE
LONG_UP = Reference(started_at=0, grace_until=120)
NOW = 10_000.0


@pytest.mark.parametrize(
    ("state", "silent_for", "leaving", "reference", "expected"),
    [
        pytest.param(ONLINE, 0, False, LONG_UP, ONLINE, id="just heard"),
        pytest.param(ONLINE, 14.9, False, LONG_UP, ONLINE, id="two beats missed"),
        pytest.param(ONLINE, 15, False, LONG_UP, UNREACHABLE, id="three beats missed"),
        pytest.param(UNREACHABLE, 59.9, False, LONG_UP, UNREACHABLE, id="not lost yet"),
        pytest.param(UNREACHABLE, 60, False, LONG_UP, LOST, id="twelve beats missed"),
        pytest.param(UNREACHABLE, 1, False, LONG_UP, ONLINE, id="came back"),
        pytest.param(LOST, 1, False, LONG_UP, ONLINE, id="lost and came back"),
        pytest.param(LOST, 30, False, LONG_UP, LOST, id="lost stays lost while silent"),
        pytest.param(ONLINE, 0, True, LONG_UP, OFFLINE, id="said leaving"),
        pytest.param(OFFLINE, 599, True, LONG_UP, OFFLINE, id="left, within the grace"),
        pytest.param(OFFLINE, 600, True, LONG_UP, LOST, id="left, and never came back"),
        pytest.param(OFFLINE, 1, False, LONG_UP, ONLINE, id="left and came back"),
        pytest.param(UNREACHABLE, 500, False, Reference(0, 120, braked=True), UNREACHABLE, id="brake holds"),
        pytest.param(OFFLINE, 5000, True, Reference(0, 120, braked=True), OFFLINE, id="brake holds the left one too"),
        pytest.param(
            UNREACHABLE, 500, False, Reference(0, 120, released_at=NOW - 59), UNREACHABLE, id="brake released lately"
        ),
        pytest.param(UNREACHABLE, 500, False, Reference(0, 120, released_at=NOW - 60), LOST, id="brake released"),
        pytest.param(ONLINE, None, False, Reference(NOW - 5, NOW + 115), ONLINE, id="not heard since the start"),
        pytest.param(ONLINE, None, False, Reference(NOW - 15, NOW + 105), UNREACHABLE, id="silent since the start"),
        pytest.param(UNREACHABLE, None, False, Reference(NOW - 179, NOW - 59), UNREACHABLE, id="within start grace"),
        pytest.param(UNREACHABLE, None, False, Reference(NOW - 180, NOW - 60), LOST, id="a full interval after grace"),
        pytest.param(LOST, None, False, Reference(NOW - 5, NOW + 115), LOST, id="was lost before the start"),
        pytest.param(OFFLINE, None, True, Reference(NOW - 700, NOW - 580), OFFLINE, id="had left before the start"),
        pytest.param(
            OFFLINE, None, True, Reference(NOW - 720, NOW - 600), LOST, id="had left, grace counts from start"
        ),
    ],
)
def test_state(
    state: NodeState, silent_for: float | None, leaving: bool, reference: Reference, expected: NodeState
) -> None:
    heard = Heard(None if silent_for is None else NOW - silent_for, leaving)
    assert decide(state, heard, NOW, LIMITS, reference) is expected


@pytest.mark.case("FC-016")
def test_a_server_that_comes_back_buries_nobody() -> None:
    """A server was down for 30 minutes; at its start it called every node dead and gave their work away."""
    started = 5_000.0
    reference = Reference(started, started + 120)
    states = {f"node-{number}": ONLINE for number in range(50)}
    heard: dict[str, float | None] = dict.fromkeys(states)
    lost_at: dict[str, float] = {}
    for second in range(400):
        now = started + second
        if second >= 5 and second % 5 == 0:
            heard.update({f"node-{number}": now for number in range(45)})  # five never come back
        for node, state in states.items():
            states[node] = decide(state, Heard(heard[node]), now, LIMITS, reference)
            if states[node] is LOST:
                lost_at.setdefault(node, second)
    assert sorted(lost_at) == [f"node-{number}" for number in range(45, 50)]
    assert min(lost_at.values()) >= 180
    assert all(states[f"node-{number}"] is ONLINE for number in range(45))
