"""Ledger, checker and fleet together on real nodes: a clean world holds, and what is planted into it is found."""

from __future__ import annotations

import secrets

from tests.faults import facts
from tests.faults.fleet import Fleet
from tests.faults.ledger import FOLDER, INSIDE
from tests.faults.named_faults import DROP_ANSWER
from tests.faults.world import Invariant, Scenario


def name() -> str:
    return f"kit-{secrets.token_hex(4)}"


def test_a_clean_world_holds_and_a_task_that_runs_is_no_lost_one(fleet: Fleet) -> None:
    ended = [fleet.submit(name(), "exit", str(code), gpus={"count": 1}) for code in (0, 5)]
    alive = fleet.submit(name(), "on-term", "3", "forever", gpus={"count": 1})
    assert [fleet.wait(task_id)["exit_code"] for task_id in ended] == [0, 5]
    fleet.wait(alive, "running")
    world = fleet.hold(Scenario(open=frozenset({alive})))
    assert {line.run for line in world.lines if line.kind == "start"} >= {*ended, alive}
    fleet.order(alive, "stop")
    assert fleet.wait(alive)["exit_code"] == 3
    fleet.hold()


def test_a_second_start_of_an_attempt_is_found_in_a_real_world(fleet: Fleet) -> None:
    task_id = fleet.submit(name(), "exit", "0")
    task = fleet.wait(task_id)
    fleet.hold()
    place = fleet.place(task["node_id"])
    labels = {"task": task_id, "uid": task["uid"], "attempt": "1", "control-plane": "x", "node": "x"}
    options = [word for key, value in labels.items() for word in ("--label", f"heterofleet.{key}={value}")]
    box = place.node.docker(
        "run", "-d", *options, "-v", f"{FOLDER}:{INSIDE}", "-e", f"HF_RUN={task_id}", "--entrypoint", "/bin/sh",
        "hf-lab/task:1", f"{INSIDE}/run.sh", "exit", "0",
    ).stdout.strip()  # fmt: skip
    try:
        place.node.docker("wait", box)
        _, found = facts.settle(fleet.plane, fleet.nodes, fleet.accepted, timeout=0)
        assert {one.invariant for one in found} == {Invariant.ONCE, Invariant.LEFTOVER}
        assert {one.subject for one in found} == {task_id}
    finally:
        place.node.docker("rm", "-f", box)
        fleet.forget_tasks()


def test_a_task_that_the_server_loses_is_found(fleet: Fleet) -> None:
    task_id = fleet.submit(name(), "exit", "0")
    fleet.wait(task_id)
    fleet.hold()
    assert fleet.plane.request("DELETE", f"/api/v1/tasks/{task_id}")[0] == 204
    _, found = facts.settle(fleet.plane, fleet.nodes, fleet.accepted, timeout=0)
    assert [one.invariant for one in found] == [Invariant.TASK]
    fleet.hold(Scenario(deleted=frozenset({task_id})))


def test_a_fault_of_the_proxies_meets_the_real_agent(fleet: Fleet) -> None:
    place = fleet.places[0]
    lost: list[int] = []

    def lose_the_first_claim(call):
        if call.kind == "claim" and not lost:
            lost.append(call.number)
            return DROP_ANSWER
        return None

    place.server.rule = lose_the_first_claim
    task_id = fleet.submit(name(), "exit", "4", node_id=place.name)
    assert fleet.wait(task_id)["exit_code"] == 4
    claims = [call for call in place.server.seen("claim") if task_id in call.path]
    assert [call.status for call in claims] == [200, 409]
    fleet.hold()


def test_a_killed_agent_comes_back_and_a_power_cut_keeps_ledger_and_proxy(fleet: Fleet) -> None:
    place = fleet.places[0]
    before = place.agent.pid
    assert place.agent.kill()
    task_id = fleet.submit(name(), "exit", "6", node_id=place.name)
    assert fleet.wait(task_id)["exit_code"] == 6
    assert place.agent.pid not in (None, before)
    place.node.power_cut()
    place.node.power_on()
    again = fleet.submit(name(), "exit", "8", node_id=place.name)
    assert fleet.wait(again)["exit_code"] == 8
    world = fleet.hold()
    assert {line.run for line in world.lines} >= {task_id, again}
