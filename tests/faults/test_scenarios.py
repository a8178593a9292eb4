"""Networks, proxies, servers and nodes that fail while tasks are on their way; each test ends with the invariants."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import Counter
from typing import Any

import pytest

from tests.faults.fleet import Fleet, Place
from tests.faults.named_faults import (
    BAD_GATEWAY,
    DROP_ANSWER,
    DROP_REQUEST,
    DUPLICATE,
    NOT_FOUND_OF_A_PROXY,
    SERVER_ERROR,
    cut,
    delay,
    hang,
    slow_answer,
)
from tests.faults.relay import Call, Fault
from tests.faults.world import Scenario
from tests.integration.waiting import until

CUT_S = float(os.environ.get("HF_CUT_S", "20"))
"""How long a node is cut off, above the time that makes it lost. The intervals here are a fifth of the usual."""
TIMES = 2
STALL_S = 1.5


def names(*words: str) -> list[str]:
    mark = secrets.token_hex(3)
    return [f"{word}-{mark}" for word in words]


def uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def node_state(fleet: Fleet, place: Place) -> str:
    return str(fleet.plane.get(f"/api/v1/nodes/{place.name}")["state"])


def set_offer(fleet: Fleet, places: list[Place], what: str) -> None:
    """Cordon or uncordon: where the next tasks can go."""
    for place in places:
        body = {"reason": "the test wants another node"} if what == "cordon" else {}
        status, answer = fleet.plane.request("POST", f"/api/v1/nodes/{place.name}/{what}", body)
        assert status < 300, answer


def test_every_fault_of_the_way_to_the_server_at_every_call_of_a_task(fleet: Fleet) -> None:
    """Each fault meets the first calls of one kind of one task; all of them at once, and beats suffer beside them."""
    over = threading.Event()
    faults: dict[str, tuple[str, Fault]] = {
        "drop-request": ("before", DROP_REQUEST),
        "drop-answer": ("after", DROP_ANSWER),
        "twice": ("before", DUPLICATE),
        "late": ("before", delay(STALL_S)),
        "slow": ("before", slow_answer(STALL_S)),
        "hang": ("before", hang(over)),
        "cut": ("after", cut(12)),
        "e500": ("before", SERVER_ERROR),
        "e502": ("before", BAD_GATEWAY),
        "e404": ("before", NOT_FOUND_OF_A_PROXY),
    }
    met: Counter[tuple[str, str]] = Counter()
    lock = threading.Lock()

    def at(moment: str, call: Call) -> Fault | None:
        for name, (when, fault) in faults.items():
            if when == moment and f"/{name}-{call.kind}-" in call.path:
                with lock:
                    met[name, call.kind] += 1
                    return fault if met[name, call.kind] <= TIMES else None
        if moment == "after" and call.kind == "heartbeat" and call.number % 4 == 0:
            return DROP_ANSWER
        return None

    for place in fleet.places:
        place.server.rule = lambda call: at("before", call)
        place.server.after = lambda call: at("after", call)
    tasks: dict[str, int] = {}
    for name in faults:
        for kind in ("claim", "report"):
            code = len(tasks) % 5
            tasks[fleet.submit(*names(f"{name}-{kind}"), "exit", str(code))] = code
    until("every fault was met", lambda: len(met) == len(tasks) and all(count for count in met.values()), 60)
    threading.Timer(STALL_S, over.set).start()
    assert {task_id: fleet.wait(task_id, timeout=90)["exit_code"] for task_id in tasks} == tasks
    fleet.good()
    fleet.hold()


def test_an_old_report_that_comes_again_changes_nothing(fleet: Fleet) -> None:
    """A proxy that kept a request sends it when everybody has forgotten it."""
    place = fleet.places[0]
    (task_id,) = names("replayed")
    fleet.submit(task_id, "exit", "6", node_id=place.name)
    ended = fleet.wait(task_id)
    own = [call for kind in ("claim", "report") for call in place.server.seen(kind) if f"/{task_id}" in call.path]
    assert len(own) == 2
    assert [place.server.replay(call) for call in own] == [409, 409]
    assert fleet.task(task_id) == ended
    fleet.hold()


@pytest.mark.timeout(CUT_S + 300)
def test_a_node_that_was_cut_off_goes_on_and_what_moved_runs_in_one_place(fleet: Fleet) -> None:
    """Nothing is known of a silent node: what waits for it goes on there; what was to be moved runs elsewhere, and its
    old copy is stopped on contact."""
    lone, *others = fleet.places
    lives, ends, moves, fails = names("lives", "ends", "moves", "fails")
    set_offer(fleet, others, "cordon")
    fleet.submit(lives, "on-term", "4", "forever", gpus={"count": 1})
    fleet.submit(ends, "sleep", str(round(CUT_S / 2)), "exit", "3")
    fleet.submit(moves, "on-term", "5", "forever", on_node_lost="reschedule", max_attempts=3)
    fleet.submit(fails, "on-term", "6", "forever", on_node_lost="fail")
    before = {task_id: fleet.wait(task_id, "running") for task_id in (lives, ends, moves, fails)}
    assert {task["node_id"] for task in before.values()} == {lone.name}
    set_offer(fleet, others, "uncordon")
    lone.node.cut_network("drop")
    try:
        until("the node is lost", lambda: node_state(fleet, lone) == "lost", 60)
        moved = until("it runs elsewhere", lambda: _elsewhere(fleet, moves, lone), 60)
        assert moved["attempt"] == 2
        assert fleet.wait(fails)["reason"] == "node_lost"
        end = uptime() + CUT_S
        until("it was away long enough", lambda: uptime() >= end, CUT_S + 5)
        waiting = {task_id: fleet.task(task_id) for task_id in (lives, ends)}
        assert all(task["status"] == "running" and task["node_lost_since"] for task in waiting.values())
    finally:
        lone.node.heal_network()
    contact = uptime()
    until("the node is back", lambda: node_state(fleet, lone) == "online", 60)
    assert fleet.wait(ends)["exit_code"] == 3
    scenario = Scenario(open=frozenset({lives, moves}), excused=frozenset({"node_lost"}), contact={lone.name: contact})
    fleet.hold(scenario)
    went_on = fleet.task(lives)
    assert (went_on["attempt"], went_on["started_at"]) == (1, before[lives]["started_at"])
    for task_id in (lives, moves):
        fleet.order(task_id, "stop")
    assert [fleet.wait(task_id)["exit_code"] for task_id in (lives, moves)] == [4, 5]
    fleet.hold(Scenario(excused=frozenset({"node_lost"}), contact={lone.name: contact}))


def _elsewhere(fleet: Fleet, task_id: str, lone: Place) -> dict[str, Any] | None:
    task = fleet.task(task_id)
    return task if task["status"] == "running" and task["node_id"] != lone.name else None


def test_tasks_end_while_the_control_plane_is_down_and_their_agents_are_killed(fleet: Fleet) -> None:
    """Results lie on the nodes until somebody takes them, with their last words."""
    codes = {}
    for place in fleet.places:
        for code, task_id in enumerate(names(*(f"unheard-{place.name}-{number}" for number in range(3)))):
            codes[fleet.submit(task_id, "print", f"words-of-{task_id}", "sleep", "4", "exit", str(code),
                               node_id=place.name)] = code  # fmt: skip
    for task_id in codes:
        fleet.wait(task_id, "running")
    fleet.plane.stop()
    try:
        for place in fleet.places:
            place.agent.kill()

        def over() -> bool:
            return sum(line.kind == "end" for place in fleet.places for line in place.ledger.lines()) == len(codes)

        until("all have ended", over, 60)
        for place in fleet.places:
            place.agent.kill()
    finally:
        fleet.plane.start()
    ended = {task_id: fleet.wait(task_id, timeout=90) for task_id in codes}
    assert {task_id: task["exit_code"] for task_id, task in ended.items()} == codes
    assert all(f"words-of-{task_id}" in task["log_tail"] for task_id, task in ended.items())
    fleet.hold()


def test_the_control_plane_is_killed_again_and_again_while_tasks_come_and_go(fleet: Fleet) -> None:
    """What was answered with 2xx is there afterwards, and runs once."""
    codes = {}
    for turn in range(4):
        for code, task_id in enumerate(names(*(f"served-{turn}-{number}" for number in range(4)))):
            codes[fleet.submit(task_id, "exit", str(code))] = code
        fleet.plane.kill()
        fleet.plane.start()
    assert {task_id: fleet.wait(task_id, timeout=90)["exit_code"] for task_id in codes} == codes
    fleet.hold()
