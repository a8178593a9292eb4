"""Cards that are lost under work that has not started, and cut cards that take their slices along."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.relay import Fault
from tests.integration.card_health.conftest import Bench
from tests.integration.waiting import until


@pytest.fixture
def unclaimed(bench: Bench) -> Iterator[Bench]:
    """No claim reaches the server, so what is placed stays scheduled."""
    server = bench.fleet.places[0].server
    server.rule = lambda call: Fault(times=0, lose=True) if call.kind == "claim" else None
    yield bench
    server.good()


def test_what_had_not_started_on_a_lost_card_starts_elsewhere_or_waits_and_says_for_what(unclaimed: Bench) -> None:
    bench = unclaimed
    bench.fleet.submit("pinned", "forever", gpus={"count": 1, "uuids": [bench.cards[1]]})
    bench.fleet.submit("any", "forever", gpus={"count": 1})
    for task_id, place in (("any", 0), ("pinned", 1)):
        bench.fleet.wait(task_id, "scheduled")
        assert bench.assigned(task_id) == [bench.cards[place]]
    bench.node.cards.lose(0)
    bench.node.cards.lose(1)
    bench.wait_health("lost", "lost", "ok", "ok")
    until("it was given another card", lambda: bench.assigned("any") in ([bench.cards[2]], [bench.cards[3]]))
    task = bench.fleet.task("any")
    assert (task["status"], task["attempt"], task["starts"], task["warnings"]) == ("scheduled", 2, 0, [])
    bench.fleet.wait("pinned", "pending")
    why = bench.fleet.plane.get("/api/v1/tasks/pinned/why")
    assert not why["fits"] and f"card {bench.cards[1]} is lost since 20" in why["summary"], why["summary"]
    assert "NVML code 15" in why["summary"]
    (node,) = why["nodes"]
    (health,) = [one for one in node["constraints"] if one["code"] == "health"]
    (evidence,) = health["evidence"]
    assert (evidence["card"], evidence["have"]) == (bench.cards[1], "lost") and evidence["help"]
    assert why["smallest_change"]["code"] == "health"
    told = bench.fleet.plane.get("/api/v1/events?task=pinned&limit=1000")["events"]
    assert any(f"card {bench.cards[1]} was lost before the start" in (event["detail"] or "") for event in told)

    bench.fleet.places[0].server.good()
    bench.fleet.wait("any", "running")


def test_a_lost_card_takes_its_slices_along_and_nothing_else(bench: Bench) -> None:
    bench.node.sh("nvidia-smi -i 1 -mig 1 && nvidia-smi mig -i 1 -cgi 19,19 -C")

    def slices() -> dict[str, str]:
        told = bench.fleet.plane.get("/api/v1/gpus")["gpus"]
        return {card["uuid"]: card["health"] for card in told if card["parent_uuid"] == bench.cards[1]}

    until("both slices are offered", lambda: list(slices().values()) == ["ok", "ok"])
    bench.fleet.submit("on-slice", "forever", gpus={"count": 1, "slice": "1g.10gb"})
    until("it runs on a slice", lambda: bench.fleet.task("on-slice")["phase"] == "running")
    held = bench.assigned("on-slice")
    busy = bench.run_on(2, "beside")

    bench.node.cards.lose(1)
    bench.wait_health("ok", "lost", "ok", "ok")
    assert set(slices().values()) == {"lost"} and len(slices()) == 2
    warned = until("the task is warned of", lambda: bench.fleet.task("on-slice")["warnings"])
    assert [warning["code"] for warning in warned] == ["card_lost"]
    bench.fleet.submit("wants-slice", "forever", gpus={"count": 1, "slice": "1g.10gb"})
    why = bench.fleet.plane.get("/api/v1/tasks/wants-slice/why")
    assert bench.fleet.task("wants-slice")["status"] == "pending" and "is lost since" in str(why["nodes"])
    bench.fleet.submit("new", "forever", gpus={"count": 1})
    bench.fleet.wait("new", "running")
    (free,) = set(slices()) - set(held)
    text = bench.fleet.plane.get(f"/api/v1/gpus/{free}/why")["summary"]
    assert f"its card {bench.cards[1]}: " in text, text
    for task_id, was in (("on-slice", held), ("beside", [bench.cards[2]])):
        task = bench.fleet.task(task_id)
        assert (task["status"], task["attempt"], bench.assigned(task_id)) == ("running", 1, was)
    assert bench.fleet.task("beside")["started_at"] == busy["started_at"]
