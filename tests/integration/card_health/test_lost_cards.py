"""Cards that are lost, gone or back, with work on their siblings: from the card's fault to what is placed where."""

from __future__ import annotations

from datetime import datetime

from tests.integration.card_health.conftest import Bench
from tests.integration.waiting import until

GONE = [("gpu_suspect", 1), ("gpu_lost", 1)]
BACK = [*GONE, ("gpu_returned", 1)]


def _unmoved(bench: Bench, before: dict[str, dict]) -> None:
    """The tasks run on as if nothing had been: same attempt, same cards, no warning."""
    for task_id, was in before.items():
        now = bench.fleet.task(task_id)
        assert {name: now[name] for name in ("status", "attempt", "starts", "gpus_assigned", "started_at")} == {
            name: was[name] for name in ("status", "attempt", "starts", "gpus_assigned", "started_at")
        }
        assert now["warnings"] == []


def test_a_lost_card_goes_alone_and_comes_back(bench: Bench) -> None:
    busy = {name: bench.run_on(place, name) for name, place in (("zero", 0), ("two", 2))}
    start = bench.settled()
    bench.node.cards.lose(1)
    bench.wait_health("ok", "lost", "ok", "ok")
    bench.wait_events(start, GONE)

    # The right card is out: of the two that nobody holds only the good one is given.
    bench.fleet.submit("new", "forever", gpus={"count": 1})
    bench.fleet.wait("new", "running")
    assert bench.assigned("new") == [bench.cards[3]]
    bench.fleet.submit("waits", "forever", gpus={"count": 1, "uuids": [bench.cards[1]]})
    why = bench.fleet.plane.get("/api/v1/tasks/waits/why")
    (node,) = why["nodes"]
    assert not why["fits"] and "cards" in [c["code"] for c in node["constraints"] if not c["ok"]], why
    _unmoved(bench, busy)

    bench.node.cards.clear_faults()
    bench.fleet.wait("waits", "running")
    assert bench.assigned("waits") == [bench.cards[1]]
    bench.wait_health("ok", "ok", "ok", "ok")
    bench.wait_events(start, BACK)
    _unmoved(bench, busy)

    told = bench.fleet.plane.get(f"/api/v1/events?after={start}&limit=1000")["events"]
    at = {event["kind"]: event for event in told if event["gpu_uuid"] == bench.cards[1]}
    first, out = (datetime.fromisoformat(at[kind]["time"]) for kind in ("gpu_suspect", "gpu_lost"))
    assert (out - first).total_seconds() >= 1.0, "two beats, 1 s apart, follow the first bad one"
    assert "3 beats in a row" in at["gpu_lost"]["detail"] and "NVML code 15" in at["gpu_lost"]["detail"]
    assert "3 beats in a row" in at["gpu_returned"]["detail"]


def test_a_card_that_is_gone_without_a_word_shifts_indices_and_no_work(bench: Bench) -> None:
    busy = {name: bench.run_on(place, name) for name, place in (("zero", 0), ("two", 2))}
    start = bench.settled()
    bench.node.cards.set(1, present=False)
    bench.wait_health("ok", "lost", "ok", "ok")
    bench.wait_events(start, GONE)
    shown = {card["uuid"]: card for card in bench.fleet.plane.get("/api/v1/gpus")["gpus"]}
    assert [shown[bench.cards[place]]["index"] for place in (0, 2, 3)] == [0, 1, 2]

    # What is index 2 now was 3 before: the container is given the card by its uuid.
    bench.fleet.submit("new", "env", "NVIDIA_VISIBLE_DEVICES", "forever", gpus={"count": 1})
    bench.fleet.wait("new", "running")
    assert bench.assigned("new") == [bench.cards[3]]
    until("the container was given that card", lambda: bench.cards[3] in str(bench.node.cards.runtime_calls()))
    _unmoved(bench, busy)

    bench.node.cards.set(1, present=True)
    bench.wait_health("ok", "ok", "ok", "ok")
    bench.wait_events(start, BACK)
    _unmoved(bench, busy)


def test_a_collector_that_fails_as_a_whole_condemns_no_card_and_gets_no_card_work(bench: Bench) -> None:
    busy = {"zero": bench.run_on(0, "zero")}
    start = bench.settled()
    bench.node.cards.fault("*", error=999)
    bench.node.cards.fault("init", error=999)
    with bench.node.cards.edit() as state:
        state["smi"] = {"exit": 9, "stdout": "", "stderr": "Failed to initialize NVML: Unknown Error"}

    def warned() -> bool:
        (node,) = bench.fleet.plane.get("/api/v1/nodes")["nodes"]
        return "gpu_collector_failing" in [warning["code"] for warning in node["warnings"]]

    until("the node says that its collector fails", warned)
    bench.fleet.submit("no-card", "print", "here")
    assert bench.fleet.wait("no-card")["status"] == "completed"
    bench.fleet.submit("card", "forever", gpus={"count": 1})
    why = bench.fleet.plane.get("/api/v1/tasks/card/why")
    assert bench.fleet.task("card")["status"] == "pending"
    assert "collector" in str(why["nodes"][0]["constraints"])
    assert bench.health() == ["unknown"] * 4, "condemned is none of them, and that they are well says nobody"
    assert bench.events(start) == []

    bench.node.cards.clear_faults()
    bench.fleet.wait("card", "running")
    _unmoved(bench, busy)
