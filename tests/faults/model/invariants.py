"""What must hold in the model, looked at after each step and once more when all is well again.

The truth is the model's engines (every container that ever was, every start and end), never the product's own word.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.faults.model.engine import Container, Run
from tests.faults.truth import Start, end_fault
from tests.faults.world import TERMINAL

if TYPE_CHECKING:
    from tests.faults.model.node import Node
    from tests.faults.model.world import World


class Watcher:
    def __init__(self, world: World) -> None:
        self._world = world
        self._ends: dict[str, tuple[Any, ...]] = {}
        self.broken = False

    def put_back(self) -> None:
        """Ends that the copy does not know are told again; what was said of them is void."""
        self._ends.clear()
        known = {row["id"] for row in self._world.plane.rows()}
        self._world.tasks = [task for task in self._world.tasks if task.id in known]

    # After each step

    def look(self) -> None:
        for node in self._world.nodes:
            if node.unforeseen:
                self._broken(f"nobody foresaw this: {node.unforeseen}")
        self._starts()
        self._cards()
        if self._world.plane.app is not None:
            self._terminal()

    def _starts(self) -> None:
        by_attempt: dict[tuple[str, int], list[Container]] = defaultdict(list)
        for _, box in self._boxes():
            if box.runs:
                by_attempt[box.key].append(box)
            for before, after in zip(box.runs, box.runs[1:], strict=False):
                if not before.signalled:
                    self._broken(f"{box.id} started again at {after.began}, and it had not been put to sleep: {before}")
        for key, boxes in by_attempt.items():
            if len(boxes) > 1:
                self._broken(f"attempt {key} started in {[box.id for box in boxes]}")
        for task in self._world.tasks:
            allowed = 1 + task.orders.count("wake") + self._woken_by_us
            for _, box in self._boxes():
                if box.plan.labels["heterofleet.task"] == task.id and len(box.runs) > allowed:
                    self._broken(f"{box.id} started {len(box.runs)} times, and was woken {allowed - 1} times")

    _woken_by_us = 5
    """Orders of the settling."""

    def _cards(self) -> None:
        for node in self._world.nodes:
            used: dict[str, str] = {}
            for box in node.engine.running():
                for card in box.cards:
                    if card in used:
                        self._broken(f"{card} is used by {used[card]} and {box.id}")
                    used[card] = box.id

    def _terminal(self) -> None:
        rows = {row["uid"]: row for row in self._world.plane.rows()}
        for uid, row in rows.items():
            if row["status"] not in TERMINAL:
                if uid in self._ends:
                    self._broken(f"{row['id']} was {self._ends[uid]}, and is {row['status']}")
                continue
            end = (row["status"], row["reason"], row["exit_code"], row["attempt"])
            if self._ends.setdefault(uid, end) != end:
                self._broken(f"{row['id']} was {self._ends[uid]}, and is {end}")

    # At the end

    def is_over(self) -> bool:
        world = self._world
        return (
            not any(node.engine.here() or node.executor._claims.all() for node in world.nodes)
            and all(row["status"] in TERMINAL for row in world.plane.rows())
            and not world.plane.held_cards()
        )

    def end(self) -> None:
        """Everything is well: no task lost, each end true, nothing left over."""
        world = self._world
        rows = {row["id"]: row for row in world.plane.rows()}
        for task in world.tasks:
            deleted = {"delete", "force-delete"} & set(task.orders)
            row = rows.get(task.id)
            if row is None and not deleted:
                self._broken(f"{task.id} is lost")
            if row is not None and row["status"] not in TERMINAL:
                self._broken(f"{task.id} has no end: {world.plane.task(task.id)}")
        for node in world.nodes:
            left = [(box.id, box.state, box.plan.labels["heterofleet.task"]) for box in node.engine.here()]
            if left:
                self._broken(f"left on {node.id}: {left}")
            claims = [
                (held.record.task_id, held.record.stage.value, held.detail) for held in node.executor._claims.all()
            ]
            if claims or node.executor.undelivered():
                self._broken(f"{node.id} still holds {claims}, {node.executor.undelivered()} ends undelivered")
        if world.plane.held_cards():
            self._broken(f"cards are held for nobody: {world.plane.held_cards()}")
        for task_id in rows:
            self._true(world.plane.task(task_id))

    def _true(self, task: dict[str, Any] | None) -> None:
        assert task is not None
        final = task["attempt"]
        for one in task["attempts"]:
            node, box = self._box_of(task["uid"], one["attempt"])
            start = self._start(node, box) if node is not None and box is not None and box.runs else None
            status = task["status"] if one["attempt"] == final else None
            fault = end_fault(status, one["reason"], one["exit_code"], start, self._excused(box))
            if fault is not None and not self._is_excused(task, one, box):
                self._broken(f"{task['id']} attempt {one['attempt']}: {fault}; {box and box.runs}; {one}")

    def _excused(self, box: Container | None) -> set[str]:
        """Infrastructure reasons that what happened in the world explains, for this container."""
        world = self._world
        found = {"node_lost"}
        if any(node.journal_faults for node in world.nodes) or world.restores:
            found |= {"end_unknown", "lost_container"}
        causes = {run.cause for run in box.runs} if box is not None else set()
        if any(node.boots > 1 for node in world.nodes):
            found |= {"host_restarted", "end_unknown", "engine_restarted"}
        if "engine" in causes or any(node.engine.stopping is not None or node.engine.silent for node in world.nodes):
            found |= {"engine_restarted", "end_unknown"}
        return found

    def _is_excused(self, task: dict[str, Any], one: dict[str, Any], box: Container | None) -> bool:
        """Where the server could not know better: it was told to give the attempt up."""
        orders = next((known.orders for known in self._world.tasks if known.id == task["id"]), [])
        given_up = one["reason"] is None or "reschedule" in orders or self._world.restores > 0
        return given_up and one["exit_code"] is None

    @staticmethod
    def _start(node: Node, box: Container) -> Start:
        run: Run = box.runs[-1]
        code = run.code
        return Start(node.id, box.id, "model", run.began, box.key[1], code, code, box.running and not box.removed, 0.0)

    def _boxes(self) -> list[tuple[Node, Container]]:
        return [(node, box) for node in self._world.nodes for box in node.engine.history]

    def _box_of(self, uid: str, attempt: int) -> tuple[Node | None, Container | None]:
        found = [(node, box) for node, box in self._boxes() if box.key == (uid, attempt)]
        started = [pair for pair in found if pair[1].runs]
        return (started or found or [(None, None)])[0]

    def _broken(self, what: str) -> None:
        from tests.faults.model.world import Broken

        self.broken = True
        raise Broken(f"{what}\nstory = {json.dumps(self._world.story)}")
