"""A card that was lost is given out again only when a probe container has run well on it: the whole way, end to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.fleet import AGENT
from tests.integration.card_health.conftest import Bench
from tests.integration.waiting import until
from tests.lab import task_image

IMAGE = "hf-lab/probe:1"
PROBE = {
    "HETEROFLEET_HARDWARE__PROBE_IMAGE": IMAGE,
    "HETEROFLEET_HARDWARE__PROBE_TIMEOUT_S": "300",
}


@pytest.fixture
def probing(bench: Bench) -> Iterator[Bench]:
    """The agent with a probe; without one after."""
    agent = bench.fleet.places[0].agent
    # A probe that ends when a test says so, and then well.
    words = ",".join(f'"{word}"' for word in ("on-term", "0", "forever"))
    made = f"docker commit -c 'CMD [{words}]' $c {IMAGE}"
    bench.node.sh(f"c=$(docker create {task_image.NAME}) && {made} && docker rm $c")
    agent.configure({**AGENT, **PROBE})
    agent.kill()
    yield bench
    agent.configure(AGENT)
    agent.kill()
    bench.node.sh(f"docker rmi -f {IMAGE}")


def why_of_task(bench: Bench, task_id: str) -> dict[str, Any]:
    return dict(bench.fleet.plane.get(f"/api/v1/tasks/{task_id}/why"))


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
    (warning,) = until("the task on it is warned of", lambda: bench.fleet.task("on-it")["warnings"])
    assert warning["code"] == "card_lost" and "NVML code 15" in warning["detail"]
    bench.node.cards.clear_faults()
    until("the probe waits for the task", lambda: "not yet run: task on-it holds the card" in why(bench, 1))
    task = bench.fleet.task("on-it")
    assert (task["status"], task["attempt"]) == ("running", 1), "it is left alone"

    bench.fleet.submit("waits", "forever", gpus={"count": 1, "uuids": [bench.cards[1]]})
    bench.fleet.order("on-it", "stop")
    (first,) = until("the task has ended, and the probe runs", lambda: probes(bench))
    # Nobody but the file in its state folder tells the next run that the card was bad.
    agent.kill()
    until("what the last run left is removed, and another runs", lambda: probes(bench) and first not in probes(bench))
    assert len(probes(bench)) == 1
    told = until("it is told of", lambda: "probe container runs" in why(bench, 1) and why_of_task(bench, "waits"))
    assert "probe container" in told["summary"] and told["smallest_change"]["code"] == "health"
    bench.node.docker("kill", "-s", "TERM", *probes(bench))
    bench.fleet.wait("waits", "running")
    assert bench.assigned("waits") == [bench.cards[1]]
    bench.wait_health("ok", "ok", "ok", "ok")
    assert probes(bench) == []
