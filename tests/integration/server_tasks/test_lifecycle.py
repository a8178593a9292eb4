"""What a lost, left or returned node and a lost card do to tasks; overdue claims; the allocations' last word."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runtime.protocol.nodes import NodeState
from runtime.protocol.times import now, to_wire
from runtime.server.services import binding
from runtime.server.services.placement.round import place
from runtime.server.services.tasks import lifecycle
from runtime.server.store.tables import control_plane, gpu_allocations, tasks, tokens
from tests.integration.server_tasks.conftest import Plane, eventually, start_plane


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Plane]:
    """Without background rounds: the test calls what they call, when it wants."""
    made, stop = start_plane(tmp_path / "server")
    background = made.parts.background
    assert background is not None
    background.stop()
    yield made
    stop()


def placed(plane: Plane, task_id: str, **spec: Any) -> None:
    plane.create(task_id, **spec)
    assert round_of(plane) == 1


def round_of(plane: Plane) -> int:
    views = [dataclasses.replace(view, state=NodeState.ONLINE) for view in plane.parts.presence.views()]
    return place(plane.parts.db, views, now(), plane.parts.settings)


def claimed(plane: Plane, node: Any, task_id: str, **spec: Any) -> tuple[int, str]:
    placed(plane, task_id, **spec)
    return plane.claimed(node, task_id)


def releasing(plane: Plane) -> list[bool]:
    return [row["releasing"] for row in plane.rows(sa.select(gpu_allocations))]


def test_a_lost_nodes_tasks_do_what_each_was_told(quiet: Plane) -> None:
    node = quiet.node(cards=8)
    card = {"gpus": {"count": 1}}
    claimed(quiet, node, "waits", **card)
    claimed(quiet, node, "moves", on_node_lost="reschedule", max_attempts=2, **card)
    claimed(quiet, node, "fails", on_node_lost="fail", **card)
    attempt, token = claimed(quiet, node, "sleeps", on_node_lost="reschedule", max_attempts=2, **card)
    assert quiet.call("POST", "/api/v1/tasks/sleeps/sleep")[0] == 202
    node.put("sleeps", attempt, token, "running", "sleeping")
    placed(quiet, "unclaimed", **card)
    quiet.parts.db.write(lambda tx: lifecycle.node_lost(tx, "gpu-a", now()))
    found = {name: quiet.task(name) for name in ("waits", "moves", "fails", "sleeps", "unclaimed")}
    assert {name: task["status"] for name, task in found.items()} == {
        "waits": "running",
        "moves": "pending",
        "fails": "failed",
        "sleeps": "sleeping",
        "unclaimed": "pending",
    }
    assert found["waits"]["node_lost_since"] and found["sleeps"]["node_lost_since"]
    assert (found["fails"]["reason"], found["fails"]["reason_class"]) == ("node_lost", "infrastructure")
    assert found["moves"]["attempts"][0]["reason"] == "node_lost"
    assert sorted(releasing(quiet)) == [False, True, True], "what may still run there keeps its card"
    quiet.parts.db.write(lambda tx: lifecycle.node_returned(tx, "gpu-a"))
    assert quiet.task("waits")["node_lost_since"] is None
    assert quiet.task("waits")["status"] == "running"


def test_a_node_that_leaves_gives_back_what_it_has_not_claimed(quiet: Plane) -> None:
    node = quiet.node(cards=2)
    claimed(quiet, node, "runs", gpus={"count": 1})
    placed(quiet, "unclaimed", gpus={"count": 1})
    quiet.parts.db.write(lambda tx: lifecycle.node_left(tx, "gpu-a"))
    assert (quiet.task("runs")["status"], quiet.task("unclaimed")["status"]) == ("running", "pending")
    assert releasing(quiet) == [False]


def test_a_lost_card_sends_back_what_had_not_started_and_warns_the_rest(quiet: Plane) -> None:
    node = quiet.node(cards=3)
    claimed(quiet, node, "runs", gpus={"count": 1, "uuids": ["GPU-gpu-a-0"]})
    placed(quiet, "unclaimed", gpus={"count": 1, "uuids": ["GPU-gpu-a-1"]})
    placed(quiet, "elsewhere", gpus={"count": 1, "uuids": ["GPU-gpu-a-2"]})
    for number in (0, 1):
        for _ in range(2):
            card = f"GPU-gpu-a-{number}"
            quiet.parts.db.write(lambda tx, card=card: lifecycle.card_lost(tx, "gpu-a", card, "GPU is lost"))
    assert quiet.task("runs")["status"] == "running"
    (warning,) = quiet.task("runs")["warnings"]
    assert warning["code"] == "card_lost" and "card GPU-gpu-a-0 of node gpu-a was lost at 20" in warning["detail"]
    assert warning["detail"].endswith(": GPU is lost"), "it stays true when the card is back"
    assert quiet.task("unclaimed")["status"] == "pending"
    assert quiet.task("elsewhere")["status"] == "scheduled"


def test_each_lost_card_of_a_task_is_warned_of_once(quiet: Plane) -> None:
    claimed(quiet, quiet.node(cards=2), "both", gpus={"count": 2})
    for number in (0, 1, 0):
        card = f"GPU-gpu-a-{number}"
        quiet.parts.db.write(lambda tx, card=card: lifecycle.card_lost(tx, "gpu-a", card, "GPU is lost"))
    told = [warning["detail"].split(" ")[1] for warning in quiet.task("both")["warnings"]]
    assert told == ["GPU-gpu-a-0", "GPU-gpu-a-1"]


def test_a_claim_that_does_not_come_goes_back_and_another_node_gets_its_chance(quiet: Plane) -> None:
    quiet.node("gpu-a").beat()
    placed(quiet, "t1")
    other = quiet.node("gpu-b")
    sweep = lifecycle.sweep_overdue_claims
    db, views = quiet.parts.db, quiet.parts.presence.views()
    later = now() + timedelta(seconds=121)
    awake = [dataclasses.replace(view, last_seen_at=later) for view in views]
    assert sweep(db, now() + timedelta(seconds=60), awake, 120) == 0
    assert sweep(db, later, awake, 120, since=now()) == 1
    assert quiet.task("t1")["status"] == "pending"
    assert [event["node_id"] for event in quiet.events(kind="claim_overdue")] == ["gpu-a"]
    assert round_of(quiet) == 1
    assert [task["id"] for task in other.scheduled()] == ["t1"]


def test_time_in_which_nobody_could_claim_does_not_count(quiet: Plane) -> None:
    quiet.node("gpu-a")
    placed(quiet, "t1")
    later = now() + timedelta(seconds=500)
    sweep = lifecycle.sweep_overdue_claims
    awake = [dataclasses.replace(view, last_seen_at=later) for view in quiet.parts.presence.views()]
    silent = [dataclasses.replace(view, last_seen_at=now() - timedelta(seconds=9)) for view in awake]
    assert sweep(quiet.parts.db, later, awake, 120, since=later - timedelta(seconds=60)) == 0
    assert sweep(quiet.parts.db, later, silent, 120) == 0
    assert quiet.task("t1")["status"] == "scheduled"


def test_the_database_refuses_a_second_holder_of_a_card(quiet: Plane) -> None:
    """The round decides on a snapshot; somebody else takes the card before it is carried out."""
    quiet.node(cards=1)
    quiet.create("t1", gpus={"count": 1})
    quiet.create("t2")
    taken = {"node_id": "gpu-a", "parent_uuid": "GPU-gpu-a-0", "slot": 0, "gpu_uuid": "GPU-gpu-a-0", "mode": "whole"}

    class Racing:
        """The database, in which a card is taken right after the snapshot was read."""

        def __init__(self) -> None:
            self.raced = False

        def read(self) -> Any:
            return quiet.parts.db.read()

        def write(self, change: Any) -> Any:
            if not self.raced:
                self.raced = True
                row = {**taken, "uid": "somebody", "attempt": 1}
                quiet.parts.db.write(lambda tx: tx.execute(sa.insert(gpu_allocations).values(**row)))
            return quiet.parts.db.write(change)

    views = [dataclasses.replace(view, state=NodeState.ONLINE) for view in quiet.parts.presence.views()]
    assert place(Racing(), views, now(), quiet.parts.settings) == 1  # type: ignore[arg-type]
    assert (quiet.task("t1")["status"], quiet.task("t1")["attempt"]) == ("pending", 0)
    assert quiet.task("t2")["status"] == "scheduled"
    assert [row["uid"] for row in quiet.rows(sa.select(gpu_allocations))] == ["somebody"]


def test_nothing_is_placed_while_the_database_is_known_to_be_put_back(quiet: Plane) -> None:
    quiet.node()
    quiet.create("t1")
    since = to_wire(now())
    quiet.parts.db.write(lambda tx: tx.execute(sa.update(control_plane).values(rolled_back_since=since)))
    assert round_of(quiet) == 0
    quiet.parts.db.write(lambda tx: tx.execute(sa.update(control_plane).values(rolled_back_since=None)))
    assert round_of(quiet) == 1


def test_an_unknown_task_is_no_deleted_one_while_the_database_is_known_to_be_put_back(quiet: Plane) -> None:
    node = quiet.node()
    assert node.task("t1")[1]["code"] == "task_not_found"
    node.beat(seen_revision=quiet.parts.db.revision + 1000)
    answers = [
        node.task("t1"),
        node.put("t1", 1, "token-token", "running", "completed", exit_code=0),
        node.call(
            "POST", "/api/v1/tasks/t1/logs", {"attempt": 1, "claim_token": "t" * 8, "from": 0, "to": 0, "data": ""}
        ),
    ]
    assert [(status, refusal["code"]) for status, refusal in answers] == [(503, "database_rolled_back")] * 3


def test_a_round_over_nothing_changes_nothing(quiet: Plane) -> None:
    quiet.node()
    revision = quiet.parts.db.revision
    assert round_of(quiet) == 0
    assert quiet.parts.db.revision == revision


def test_a_stall_flagged_before_a_restart_is_taken_back_when_the_container_is_seen(tmp_path: Path) -> None:
    """The flag was known only to the process that had set it, and stood for ever after a restart."""
    before, stop = start_plane(tmp_path / "server")
    node = before.node()
    attempt, _ = before.running(node, "t1")
    before.parts.db.write(lambda tx: tx.execute(sa.update(tasks).values(stalled=True)))
    node.health = [{"task_id": "t1", "uid": before.task("t1")["uid"], "attempt": attempt, "phase": "running"}]
    before.parts.db.write(lambda tx: tx.execute(sa.delete(tokens)))  # the next start adds them again
    stop()
    after, stop = start_plane(tmp_path / "server")
    try:
        node.address = f"127.0.0.1:{after.port}"

        def recovered() -> bool:
            node.beat(live_task_ids=["t1"])
            return after.task("t1")["stalled"] is False

        eventually("the flag is taken back", recovered)
        assert [event["code"] for event in after.events(kind="task_stalled")] == ["recovered"]
    finally:
        stop()


def test_what_ended_long_ago_is_removed_with_all_that_belongs_to_it(quiet: Plane) -> None:
    node = quiet.node()
    attempt, token = claimed(quiet, node, "old")
    claimed(quiet, node, "runs")
    node.put("old", attempt, token, "running", "completed", exit_code=0)
    removed = quiet.parts.db.write(lambda tx: lifecycle.prune(tx, to_wire(now() + timedelta(days=1))))
    assert removed == 1
    assert [row["id"] for row in quiet.rows(sa.select(tasks))] == ["runs"]


def test_a_row_read_before_a_takeover_does_not_undo_it(quiet: Plane) -> None:
    """With several processes each reads the nodes now and then; what it read may be old when it gets to it."""
    node = quiet.node()
    attempt, token = claimed(quiet, node, "t1")
    presence = quiet.parts.presence
    before = binding.load_all(quiet.parts.db)
    node.beat(leaving=True)
    node.instance_id, node.boot_id, node.run = "a-new-instance", "b2-b2-b2-b2", 1
    assert node.beat()[0] == 200
    for held in before:
        presence.absorb(held, with_state=False)
    assert presence.bound_instance("gpu-a") == "a-new-instance"
    assert node.put("t1", attempt, token, "running", "completed", exit_code=0)[0] == 200
