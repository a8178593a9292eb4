"""Who ended a container, the program or the engine that went down: what is known around the end, and the verdict.

The engine's present run began at 1000 s of the monotonic clock; the container was told to start at 100 s.
"""

from __future__ import annotations

import dataclasses

import pytest

from runtime.agent.drivers.docker_answers import ContainerEvent, signalled_before_end
from runtime.agent.drivers.engine_unit import read_times
from runtime.agent.drivers.witness import Witness
from runtime.agent.tasks.engine_ends import AroundEnd, ended_with_engine

SEEN = AroundEnd(ended=(990.0,), asked=100.0, engine_began=1000.0)

TABLE = [
    ("the engine was seen at work after it", {}, False),
    ("inside a silence", {"silent": True}, True),
    ("nobody looked then", {"watched": False}, True),
    ("by itself, says the engine", {"silent": True, "by_itself": True}, False),
    ("an engine that leaves its containers alone", {"silent": True, "outlives": True}, False),
    ("one run of the engine from before the start; only its socket was away",
     {"silent": True, "engine_began": 50.0}, False),
    ("long after the engine's start", {"silent": True, "ended": (1015.1,)}, False),
    ("what a killed engine left is ended by the next one", {"silent": True, "ended": (1001.0,)}, True),
    ("before the engine was stopped", {"silent": True, "engine_stopping": 991.0}, False),
    ("long before the engine was stopped, and nobody looked", {"watched": False, "engine_stopping": 995.0}, False),
    ("as the engine was stopped", {"engine_stopping": 985.0}, True),
    ("just as the engine was stopped", {"engine_stopping": 990.3}, True),
    ("an older stop says nothing of this one", {"engine_stopping": 1001.0, "silent": True}, True),
    ("before or after the stop: the clock was set", {"ended": (500.0, 990.0), "engine_stopping": 985.0}, True),
    ("when the engine began nobody knows", {"engine_began": None, "watched": False}, False),
    ("when the engine began nobody knows; it was silent", {"engine_began": None, "silent": True}, True),
    ("when the container was asked for nobody knows", {"asked": None, "silent": True}, True),
    ("when it ended nobody knows", {"ended": (), "watched": False}, True),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "verdict"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_who_ended_it(changes: dict[str, object], verdict: bool) -> None:
    assert ended_with_engine(dataclasses.replace(SEEN, **changes)) is verdict


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("open_for", "heard", "by_itself"),
    [
        (0.0, ["start", "die"], True),
        (100.0, ["die"], True),
        (1.0, ["die"], False),  # the signal may have come before the stream began
        (100.0, ["kill", "die"], False),
        (0.0, ["start", "kill", "die"], False),
        (100.0, ["kill", "start", "die"], True),
        (100.0, ["die", "start"], False),
        (100.0, ["die", "destroy"], False),
        (100.0, ["oom", "die"], True),
        (100.0, [], False),
    ],
)
def test_what_the_engine_told(open_for: float, heard: list[str], by_itself: bool) -> None:
    clock = Clock()
    witness = Witness(clock)
    witness.opened()
    clock.now += open_for
    for what in heard:
        witness.heard(what, "c")
    assert witness.ended_by_itself("c") is by_itself
    assert not witness.ended_by_itself("d")


def test_a_new_stream_knows_nothing_of_signals_before_it_but_keeps_what_was_seen() -> None:
    clock = Clock()
    witness = Witness(clock)
    witness.opened()
    witness.heard("start", "a")
    witness.heard("start", "b")
    witness.heard("die", "a")
    witness.opened()
    witness.heard("die", "b")
    assert (witness.ended_by_itself("a"), witness.ended_by_itself("b")) == (True, False)


def test_what_is_remembered_is_bounded() -> None:
    witness = Witness()
    witness.opened()
    for number in range(10_000):
        for what in ("start", "die"):
            witness.heard(what, str(number))
    assert not witness.ended_by_itself("0")
    assert witness.ended_by_itself("9999")


@pytest.mark.parametrize(
    ("events", "signalled"),
    [
        (["start", "kill", "die"], True),
        (["start", "die"], False),
        (["start", "die", "kill"], False),
        (["kill", "die"], True),
        (["die"], None),  # what came before is forgotten
        (["start", "kill"], None),
        (["kill", "die", "start", "die"], False),
        (["create", "start", "oom", "die", "destroy"], False),
        ([], None),
    ],
)
def test_whether_a_signal_came_first(events: list[str], signalled: bool | None) -> None:
    found = [None, *(ContainerEvent(what, "c", "u") for what in events)]
    assert signalled_before_end(found) is signalled


SHOWN = "ActiveState=active\nInactiveExitTimestampMonotonic=1000000\nActiveEnterTimestampMonotonic=1500000\n"


def test_what_systemd_says_of_docker() -> None:
    times = read_times(SHOWN + "ActiveExitTimestampMonotonic=900000\n")
    assert times is not None
    assert (times.stopping, times.began, times.ready) == (0.9, 1.0, 1.5)
    first = read_times(SHOWN + "ActiveExitTimestampMonotonic=0\n")
    assert first is not None and first.stopping is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rubbish",
        SHOWN,
        SHOWN.replace("=active", "=inactive") + "ActiveExitTimestampMonotonic=900000\n",
        SHOWN.replace("1500000", "500000") + "ActiveExitTimestampMonotonic=900000\n",
        SHOWN.replace("1000000", "[not set]") + "ActiveExitTimestampMonotonic=900000\n",
    ],
)
def test_what_says_nothing_of_docker(text: str) -> None:
    assert read_times(text) is None
