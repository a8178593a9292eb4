"""A node whose clock is set while tasks run: time limits, ends and who caused them stay what they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fleet import AGENT
from tests.integration.engine_trouble.trouble import Trouble
from tests.integration.waiting import until

LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
SHOWN = "/run/hf-faketime"
FAKED = {
    "LD_PRELOAD": LIBRARY,
    "FAKETIME_TIMESTAMP_FILE": SHOWN,
    "FAKETIME_NO_CACHE": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
}
DIRECT = {name: value for name, value in AGENT.items() if name != "HETEROFLEET_DOCKER_HOST"}
DIRECT["HETEROFLEET_PROCESS_DRIVER"] = "true"


@pytest.fixture
def faked(trouble: Trouble) -> Iterator[Trouble]:
    """The agent's wall clock shows what ``set_clock`` says; Docker's stays true."""
    agent = trouble.fleet.places[0].agent
    set_clock(trouble, "+0")
    agent.configure({**DIRECT, **FAKED})
    trouble.agent("restart")
    yield trouble
    agent.configure(DIRECT)
    trouble.agent("restart")


def set_clock(trouble: Trouble, ahead: str) -> None:
    trouble.node.put(SHOWN, f"{ahead}\n")


@pytest.mark.case("FC-015")
def test_a_clock_that_is_set_at_will(faked: Trouble) -> None:
    """A node whose clock was wrong was marked offline although it answered. Here it is an hour and a year off, to
    both sides, while tasks run: none runs out of its time, and each end is what it was."""
    trouble = faked
    limited, ending = trouble.start("forever", timeout_s=3000), trouble.start("sleep", "6", "exit", "3")
    for ahead in ("+1h", "-1h", "+365d", "-365d"):
        set_clock(trouble, ahead)
        trouble.beats(2)
        assert trouble.view()["state"] == "online"
    assert trouble.end(ending) == ("exited", 3)
    task = trouble.task(limited)
    assert (task["status"], task["attempt"], task["phase"]) == ("running", 1, "running")
    until("the skew is told", lambda: abs(trouble.view()["clock_skew_s"] or 0) > 86400)
    trouble.agent("restart")
    trouble.runs(limited)
    set_clock(trouble, "+1h")
    trouble.node.restart_engine()
    assert trouble.end(limited) == ("engine_restarted", 143)
