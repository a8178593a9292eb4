"""A card that was lost is given out again only when a probe container has run well on it: the whole way, end to end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fleet import AGENT
from tests.integration.card_health.conftest import Bench
from tests.integration.waiting import until
from tests.lab import task_image

IMAGE = "hf-lab/probe:1"
PROBE = {
    "HETEROFLEET_HARDWARE__PROBE_IMAGE": IMAGE,
    "HETEROFLEET_HARDWARE__PROBE_TIMEOUT_S": "30",
}


def probe_does(bench: Bench, *words: str) -> None:
    """What the probe's image does when it is run next."""
    command = ",".join(f'"{word}"' for word in words)
    made = f"docker commit -c 'CMD [{command}]' $c {IMAGE}"
    bench.node.sh(f"c=$(docker create {task_image.NAME}) && {made} && docker rm $c")


@pytest.fixture
def probing(bench: Bench) -> Iterator[Bench]:
    """The agent with a probe; without one after."""
    agent = bench.fleet.places[0].agent
    probe_does(bench, "exit", "0")
    agent.configure({**AGENT, **PROBE})
    agent.kill()
    yield bench
    agent.configure(AGENT)
    agent.kill()
    bench.node.sh(f"docker rmi -f {IMAGE}")


def why(bench: Bench, place: int) -> str:
    return str(bench.fleet.plane.get(f"/api/v1/gpus/{bench.cards[place]}/why")["summary"])


def probes(bench: Bench) -> list[str]:
    """Its probe containers."""
    return bench.node.sh("docker ps -aq --filter label=heterofleet.card-probe").split()


def test_a_lost_card_is_given_out_again_after_a_probe_alone(probing: Bench) -> None:
    bench = probing
    agent = bench.fleet.places[0].agent
    bench.run_on(1, "on-it")
    bench.node.cards.lose(1)
    bench.wait_health("ok", "lost", "ok", "ok")
    bench.node.cards.clear_faults()
    until("the probe waits for the task", lambda: "not yet run: task on-it holds the card" in why(bench, 1))
    assert bench.fleet.task("on-it")["status"] == "running"

    bench.fleet.submit("waits", "forever", gpus={"count": 1, "uuids": [bench.cards[1]]})
    bench.fleet.submit("new", "forever", gpus={"count": 1})
    bench.fleet.wait("new", "running")
    assert bench.assigned("new") != [bench.cards[1]], "its siblings are given out all the time"

    probe_does(bench, "print", "no kernel image", "exit", "3")
    bench.fleet.order("on-it", "stop")
    until("the probe has failed", lambda: "probe container exited with 3: no kernel image" in why(bench, 1))
    told = bench.fleet.plane.get("/api/v1/tasks/waits/why")
    assert "probe container exited with 3" in told["summary"] and not told["fits"]
    assert told["smallest_change"]["code"] == "health"

    # Nobody but the file in its state folder tells the next run that the card was bad.
    probe_does(bench, "sleep", "4", "exit", "0")
    agent.kill()
    until("the next run probes it too", lambda: "probe container runs" in why(bench, 1))
    assert bench.fleet.task("waits")["status"] == "pending"
    assert len(probes(bench)) == 1
    bench.fleet.wait("waits", "running")
    assert bench.assigned("waits") == [bench.cards[1]]
    bench.wait_health("ok", "ok", "ok", "ok")
    assert probes(bench) == []
