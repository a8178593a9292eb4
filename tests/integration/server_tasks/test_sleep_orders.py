"""What may be ordered of a task that sleeps, wakes or lies on a lost node, and what a restart counts for its node."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from runtime.protocol.times import now
from runtime.server.services.tasks import lifecycle
from runtime.server.store.tables import gpu_allocations, nodes
from tests.integration.server_tasks.conftest import Plane, eventually
from tests.lab.simulated_node import SimulatedNode

CARD: dict[str, Any] = {"gpus": {"count": 1}}


def order(plane: Plane, task_id: str, what: str) -> tuple[int, str | None]:
    status, body = plane.call("POST", f"/api/v1/tasks/{task_id}/{what}")
    return status, body.get("code")


def asleep(plane: Plane, node: SimulatedNode, task_id: str, **spec: Any) -> tuple[int, str]:
    attempt, token = plane.running(node, task_id, **spec)
    assert order(plane, task_id, "sleep") == (202, None)
    assert node.put(task_id, attempt, token, "running", "sleeping")[0] == 200
    return attempt, token


def summary(plane: Plane, task_id: str) -> str:
    return str(plane.get(f"/api/v1/tasks/{task_id}/why")["summary"])


def held(plane: Plane) -> list[tuple[int, bool]]:
    return [(row["attempt"], row["releasing"]) for row in plane.rows(sa.select(gpu_allocations))]


def test_a_wake_that_waits_says_for_what_and_can_be_taken_back(plane: Plane) -> None:
    node = plane.node(cards=1)
    attempt, token = asleep(plane, node, "t1", **CARD)
    assert summary(plane, "t1") == "Its container sleeps on gpu-a."
    assert order(plane, "t1", "sleep") == (409, "not_running"), "it sleeps, and nobody wants it to wake"
    other, other_token = plane.running(node, "t2", **CARD)
    assert order(plane, "t1", "wake") == (202, None)
    assert summary(plane, "t1") == (
        "It wakes on gpu-a and nowhere else, with the cards that it had; card GPU-gpu-a-0 is held by task t2."
    )
    assert order(plane, "t1", "sleep") == (202, None)
    assert plane.task("t1")["desired"] == "sleep"
    node.put("t2", other, other_token, "running", "completed", exit_code=0)
    assert order(plane, "t1", "wake") == (202, None)
    eventually("it has its card again", lambda: held(plane))
    assert order(plane, "t1", "sleep") == (409, "illegal_transition"), "its node may have started it already"
    assert summary(plane, "t1") == "Its cards are its own again; gpu-a is to start its container."
    node.beat(task_health=[{"task_id": "t1", "uid": plane.task("t1")["uid"], "attempt": attempt, "phase": "sleeping",
                            "detail": "cannot be woken: no such device"}])  # fmt: skip
    assert "the node says: cannot be woken: no such device" in summary(plane, "t1")
    assert node.put("t1", attempt, token, "sleeping", "running")[0] == 200
    assert order(plane, "t1", "wake") == (409, "not_running")


def test_a_card_that_is_lost_meanwhile_is_waited_for(plane: Plane) -> None:
    node = plane.node(cards=2)
    asleep(plane, node, "t1", gpus={"count": 1, "uuids": ["GPU-gpu-a-0"]})
    lost = [{"uuid": "GPU-gpu-a-0", "index": 0, "reason": "GPU is lost"}]
    for _ in range(3):
        node.beat(gpu_collect_failures=lost)
    assert order(plane, "t1", "wake") == (202, None)
    assert "card GPU-gpu-a-0 is lost" in summary(plane, "t1")
    assert plane.get("/api/v1/tasks/t1/why")["smallest_change"]["code"] == "health"

    def back() -> bool:
        node.beat()
        return bool(held(plane))

    eventually("the same card is its own again, never the other", back)
    assert [row["gpu_uuid"] for row in plane.rows(sa.select(gpu_allocations))] == ["GPU-gpu-a-0"]


def test_a_process_has_nothing_to_sleep_in(plane: Plane) -> None:
    node = plane.node()
    node.beat(drivers=["docker", "process"])
    plane.create("t1", driver="process", image=None, command=["true"])
    assert order(plane, "t1", "sleep") == (422, "illegal_transition")


def test_a_drain_is_done_when_only_sleepers_are_left_and_nothing_wakes_meanwhile(plane: Plane) -> None:
    node = plane.node(cards=1)
    attempt, _ = asleep(plane, node, "t1", **CARD)
    running, token = plane.running(node, "t2")
    node.health = [{"task_id": name, "uid": plane.task(name)["uid"], "attempt": number, "phase": phase}
                   for name, number, phase in (("t1", attempt, "sleeping"), ("t2", running, "running"))]  # fmt: skip
    node.beat(live_task_ids=["t2"])
    assert plane.call("POST", "/api/v1/nodes/gpu-a/drain", {"reason": "new disk", "deadline_s": 600})[0] == 200
    assert order(plane, "t1", "wake") == (409, "illegal_transition")
    node.put("t2", running, token, "running", "completed", exit_code=0)
    del node.health[1]

    def done() -> bool:
        node.beat(live_task_ids=[])
        return plane.get("/api/v1/nodes/gpu-a")["draining"] is False

    eventually("the drain is done", done)
    assert any("1 task(s) sleep there" in (event["detail"] or "") for event in plane.events(kind="node_cordoned"))
    assert plane.task("t1")["status"] == "sleeping"


def test_a_sleeper_that_is_about_to_wake_keeps_its_card_when_it_is_forced_away(plane: Plane) -> None:
    node = plane.node(cards=1)
    attempt, _ = asleep(plane, node, "t1", **CARD)
    uid = plane.task("t1")["uid"]
    order(plane, "t1", "wake")
    eventually("it has its card again", lambda: held(plane))
    node.beat(task_health=[{"task_id": "t1", "uid": uid, "attempt": attempt, "phase": "sleeping"}])
    assert plane.call("DELETE", "/api/v1/tasks/t1?force=true")[0] == 204
    assert held(plane) == [(attempt, True)]

    def free() -> bool:
        node.beat()
        return not held(plane)

    eventually("the node says that it is gone", free)


def test_a_task_taken_from_its_node_has_its_next_number_at_once(plane: Plane) -> None:
    """With nowhere else to go it waited under its old number, so its node let the old copy run, which held the card."""
    node = plane.node(cards=1)
    attempt, token = plane.running(node, "t1", on_node_lost="reschedule", max_attempts=3, **CARD)
    plane.parts.db.write(lambda tx: lifecycle.node_lost(tx, "gpu-a", now()))
    task = plane.task("t1")
    assert (task["status"], task["attempt"], task["node_id"]) == ("pending", attempt + 1, None)
    assert [one["attempt"] for one in task["attempts"]] == [attempt], "it was given to no node yet"
    assert held(plane) == [(attempt, True)]
    assert plane.get("/api/v1/tasks/t1/logs")["attempt"] == attempt, "whoever asks for its output means what there is"
    assert node.task("t1")[1]["attempt"] == attempt + 1, "what tells the node to end its copy"
    status, refusal = node.put("t1", attempt, token, "running", "completed", exit_code=0)
    assert (status, refusal["code"]) == (409, "state_conflict")
    assert plane.scheduled(node, "t1") == attempt + 1, "no number is left out"
    (event,) = plane.events(kind="late_result")
    assert event["attempt"] == attempt


@pytest.mark.parametrize("reason", ["host_restarted", "engine_restarted"])
def test_one_restart_under_three_tasks_counts_once_and_three_restarts_three_times(plane: Plane, reason: str) -> None:
    node = plane.node()
    claims = {name: plane.running(node, name) for name in ("a", "b", "c", "d")}
    for name, (attempt, token) in claims.items():
        assert node.put(name, attempt, token, "running", "failed", reason=reason, exit_code=137)[0] == 200
    assert [row["bad_ends"] for row in plane.rows(sa.select(nodes.c.bad_ends))] == [1]
    assert plane.get("/api/v1/nodes/gpu-a")["cordon"] is None
    for name in ("e", "f"):
        attempt, token = plane.running(node, name)
        node.put(name, attempt, token, "running", "failed", reason=reason, exit_code=137)
    assert plane.get("/api/v1/nodes/gpu-a")["cordon"]["owner"] == "system"
