"""A database that is put back under a living fleet: no container is touched, and every task gets its true end."""

from __future__ import annotations

from typing import Any

from tests.integration.restore.fleet import CARD, Fleet
from tests.integration.waiting import until

SHOWN = ("status", "exit_code", "reason", "log_tail", "node_finished_at", "attempt", "node_id")


def shown(task: dict[str, Any]) -> dict[str, Any]:
    return {name: task[name] for name in SHOWN}


def test_five_tasks_of_the_lost_time_are_what_they_were(fleet: Fleet) -> None:
    """Copied; then five tasks created, three finished, two running; then the copy put back."""
    a, b = fleet.a, fleet.b
    before = fleet.submit(a, "forever", gpus=CARD)
    fleet.running(before)
    copy = fleet.copy()
    done = [
        fleet.submit(a, "print", "one", "exit", "0", gpus=CARD),
        fleet.submit(b, "print", "two", "exit", "7", gpus=CARD, env={"TOKEN": "secret-value-1"}),
        fleet.submit(a, "die", "KILL"),
    ]
    going = [fleet.submit(node, "on-term", "5", "forever", gpus=CARD) for node in (a, b)]
    ends = {task["id"]: shown(task) for task in fleet.ended(*done)}
    fleet.running(*going)
    until("only these are there", lambda: fleet.containers().keys() == {before, *going})
    boxes = fleet.containers()

    fleet.put_back(copy)
    fleet.rolled_back()
    fleet.beats(3)
    assert fleet.containers() == boxes, "no container is touched"
    assert [fleet.servers.call("GET", f"/tasks/{one}")[0] for one in (*done, *going)] == [503] * 5
    assert "accept-restore" in fleet.readyz()["rolled_back"]["text"]

    accepted = fleet.accepted()
    assert sorted(accepted["adopted"]) == sorted([*done, *going]), accepted
    fleet.is_status("running", before, *going)
    assert {task["id"]: shown(task) for task in fleet.ended(*done)} == ends
    fleet.no_card_is_doubled()
    fleet.beats(3)
    assert fleet.containers() == boxes, "and none is touched after that"
    assert not fleet.readyz()["rolled_back"]["on"]
    fleet.stopped(before, *going)
    assert fleet.rows("SELECT * FROM gpu_allocations") == []


def test_whatever_became_of_a_task_in_the_lost_time(fleet: Fleet) -> None:
    """Waiting, running and asleep at the time of the copy; finished, deleted, moved, put to sleep and woken after it.

    Server and agent start anew while nobody has accepted the copy yet."""
    a, b = fleet.a, fleet.b
    fleet.cordon(b)
    waiting = fleet.submit(b, "print", "done", "exit", "3", gpus=CARD)
    moved = fleet.submit(None, "forever", max_attempts=3)
    deleted = fleet.submit(a, "forever", gpus=CARD)
    sleeper = fleet.submit(a, "forever", gpus={**CARD, "count": 6})
    woken = fleet.submit(a, "forever", gpus=CARD)
    fleet.running(moved, deleted, sleeper, woken)
    fleet.order(woken, "sleep")
    fleet.is_status("sleeping", woken)
    copy = fleet.copy()

    fleet.uncordon(b)
    end = shown(fleet.ended(waiting)[0])
    fleet.servers.call("DELETE", f"/tasks/{deleted}")
    fleet.gone(deleted)
    fleet.cordon(a)
    fleet.order(moved, "reschedule")
    until("it runs elsewhere", lambda: fleet.task(moved)["node_id"] == b.configured)
    fleet.uncordon(a)
    fleet.order(sleeper, "sleep")
    fleet.is_status("sleeping", sleeper)
    fleet.order(woken, "wake")
    heir = fleet.submit(a, "forever", gpus={**CARD, "count": 6})
    fleet.running(moved, woken, heir)
    until("the first copy is gone", lambda: fleet.copies(moved) == 1 and len(fleet.containers()) == 4)
    boxes = fleet.containers()
    attempt = fleet.task(moved)["attempt"]

    a.kill()
    fleet.put_back(copy)
    a.start().registered()
    fleet.rolled_back()
    fleet.plane.stop()
    fleet.plane.start()
    fleet.rolled_back()
    fleet.uncordon(b)  # it was not free at the time of the copy
    fresh = fleet.submit(b, "exit", "0")
    fleet.beats(3)
    assert fleet.containers() == boxes
    assert fleet.task(fresh)["status"] == "pending"

    fleet.accepted()
    assert shown(fleet.ended(waiting)[0]) == end
    assert fleet.ended(deleted)[0]["reason"] == "stopped_by_operator"
    assert fleet.ended(fresh)[0]["attempt"] > 1000, "its number is above any that a node may have seen"
    fleet.is_status("sleeping", sleeper)
    fleet.running(moved, woken, heir)
    assert (fleet.task(moved)["node_id"], fleet.task(moved)["attempt"]) == (b.configured, attempt)
    fleet.beats(3)
    assert {name: box for name, box in fleet.containers().items() if name in boxes} == boxes
    fleet.no_card_is_doubled()
    fleet.stopped(heir)
    fleet.order(sleeper, "wake")
    fleet.running(sleeper)
    fleet.no_card_is_doubled()
    assert fleet.containers()[sleeper][0] == boxes[sleeper][0]
    fleet.stopped(moved, woken, sleeper)


def test_a_fresh_database_judges_nothing_and_the_old_one_is_known_again(fleet: Fleet) -> None:
    """The server came up with an empty database, and only then was the copy put in its place."""
    a = fleet.a
    copy = fleet.copy()
    task = fleet.submit(a, "on-term", "9", "forever", gpus=CARD)
    fleet.running(task)
    boxes = fleet.containers()
    fleet.put_nothing()
    fleet.beats(4)
    assert fleet.containers() == boxes, "the containers of another control plane are nobody's to judge"
    assert not fleet.readyz()["rolled_back"]["on"]
    assert [entry["task_id"] for entry in a.status()["foreign"]] == [task]
    fleet.put_back(copy)
    fleet.rolled_back()
    assert fleet.accepted()["adopted"] == [task]
    fleet.running(task)
    assert fleet.containers() == boxes
    fleet.no_card_is_doubled()
    fleet.stopped(task)
