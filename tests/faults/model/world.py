"""The world: a control plane, nodes, tasks, and everything that may happen to them, one step at a time.

Each step is a method of :class:`World` with plain arguments; :meth:`World.do` takes it, writes it down in ``story``
and looks at all invariants. A story played again on a fresh world does the same.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.model.clock import Clock, installed
from tests.faults.model.engine import Container
from tests.faults.model.node import Node
from tests.faults.model.plane import INTERVAL_S, Plane

NODES = ("node-a", "node-b")
RECONCILE_S = 60.0
TASKS_AT_ONCE = 6
Step = tuple[str, dict[str, Any]]


class Broken(AssertionError):
    """An invariant does not hold. The message has the story that leads there."""


@dataclass
class Submitted:
    """A task that was accepted. ``orders``: what the operator said of it and the server took."""

    id: str
    spec: Mapping[str, Any]
    orders: list[str] = field(default_factory=list)


class World:
    def __init__(self) -> None:
        from tests.faults.model.invariants import Watcher

        self.folder = Path(tempfile.mkdtemp(prefix="hf-model-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.clock = Clock()
        self._stack = ExitStack()
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.enter_context(installed(self.clock))
        self.plane = Plane(self.folder / "server", self.clock)
        self._stack.callback(self.plane.stop)
        self.nodes = [Node(name, self.folder / name, self.plane, self.clock) for name in NODES]
        for node in self.nodes:
            self._stack.callback(node.kill)
        self.tasks: list[Submitted] = []
        self.copied_tasks: list[Submitted] = []
        self.story: list[Step] = []
        self.restores = 0
        self.watcher = Watcher(self)
        self.life(3)

    def close(self) -> None:
        self._stack.close()

    def do(self, name: str, **arguments: Any) -> None:
        """One step of the story, and a look at everything after it."""
        self.story.append((name, arguments))
        self.clock.now += 0.01  # no two things happen at once: names are made of times
        getattr(self, name)(**arguments)
        self.watcher.look()

    # Operators

    def submit(self, kind: str, attempts: int, lost: str, cards: int, program: str, timeout: bool) -> None:
        if sum(1 for row in self.plane.open_rows()) >= TASKS_AT_ONCE:
            return
        task_id = f"t{len(self.tasks)}-{self.restores}"
        environment = {"obeys": {}, "stubborn": {"MODEL_STUBBORN": "1"}, "exits 0": {"MODEL_TERM": "0"}}[program]
        body: dict[str, Any] = {
            "id": task_id, "name": task_id, "kind": kind, "image": "app:1", "max_attempts": attempts,
            "env": environment, "stop_grace_s": 10,
            "on_node_lost": lost if attempts > 1 or lost != "reschedule" else "wait",
        }  # fmt: skip
        if cards:
            body["gpus"] = {"count": cards, "vendor": "virtual"}
        if timeout:
            body["timeout_s"] = 300
        status, answer = self.plane.call("POST", "/tasks", body)
        if status == 201:
            self.tasks.append(Submitted(task_id, body))
        elif status not in (0, 503):
            raise Broken(f"the task is refused: {status} {answer}")

    def order(self, which: int, action: str) -> None:
        """stop, sleep, wake, reschedule, delete or force-delete."""
        if not self.tasks:
            return
        task = self.tasks[which % len(self.tasks)]
        if action in ("delete", "force-delete"):
            path = f"/tasks/{task.id}" + ("?force=true" if action == "force-delete" else "")
            status, _ = self.plane.call("DELETE", path)
        else:
            status, _ = self.plane.call("POST", f"/tasks/{task.id}/{action}")
        if 200 <= status < 300:
            task.orders.append(action)

    # Agents

    def beat(self, node: int) -> None:
        self._node(node).beat()

    def take(self, node: int) -> None:
        self._node(node).take_tasks()

    def poll(self, node: int) -> None:
        self._node(node).poll()

    def reconcile(self, node: int) -> None:
        self._node(node).reconcile()

    def step(self, node: int, which: int) -> None:
        self._node(node).step(which)

    def kill(self, node: int, journal: str) -> None:
        self._node(node).kill(journal)

    def doom(self, node: int, after: int) -> None:
        """The agent is killed at the so-manieth place that it comes by."""
        self._node(node).doom = after

    def begin(self, node: int) -> None:
        self._node(node).begin()

    def network(self, node: int, cut: bool) -> None:
        self._node(node).cut = cut

    def fates(self, node: int, fates: list[str]) -> None:
        """Of the next requests."""
        self._node(node).fates.extend(fates)

    def late(self, node: int) -> None:
        self._node(node).deliver_late()

    def wall(self, node: int, off: float) -> None:
        self._node(node).clock_off = off

    # Engines and machines

    def trouble(self, node: int, fates: list[str]) -> None:
        """Of the engine's next answers."""
        engine = self._node(node).engine
        engine.fates.extend(fates)
        engine.silent = engine.silent or bool({"away", "lost"} & set(fates))

    def program_ends(self, which: int, code: int, told: bool) -> None:
        running = [(node, box) for node in self.nodes for box in node.engine.running()]
        if running:
            node, box = running[which % len(running)]
            self._end(node, box, code, told=told)

    def engine_down(self, node: int) -> None:
        engine = self._node(node).engine
        if engine.up:
            engine.go_down("engine")

    def engine_up(self, node: int) -> None:
        engine = self._node(node).engine
        if not engine.up:
            engine.come_up()

    def reboot(self, node: int) -> None:
        """Power is cut, and comes back."""
        chosen = self._node(node)
        chosen.kill()
        chosen.engine.go_down("host")
        self.clock.now += 30
        chosen.boot()

    # The control plane

    def tick(self) -> None:
        self.plane.tick()

    def server(self, up: bool) -> None:
        if up is not (self.plane.app is None):
            return
        if up:
            self.plane.start()
        else:
            self.plane.stop()

    def copy(self) -> None:
        if self.plane.app is not None and not self.plane.rolled_back:
            self.plane.copy()
            self.copied_tasks = list(self.tasks)

    def put_back(self) -> None:
        if self.plane.copied:
            self.plane.put_back()
            self.restores += 1
            self.watcher.put_back()

    def accept(self) -> None:
        if self.plane.rolled_back:
            self.plane.accept(force=False)
            self.plane.tick()

    # Time

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        for node in self.nodes:
            node.fire()

    def life(self, beats: int) -> None:
        """As it goes when nothing fails, so many beats long."""
        for _ in range(beats):
            for part in self._one_beat():
                part()

    def _one_beat(self) -> Iterator[Any]:
        yield lambda: self.wait(INTERVAL_S)
        yield self.plane.tick
        for node in self.nodes:
            yield node.poll
            yield node.steps
            yield node.beat
            yield node.take_tasks
            yield node.steps
            if self.clock.now - node.reconciled_at >= RECONCILE_S:
                yield node.reconcile
                yield node.steps
        yield self.plane.tick

    def settle(self) -> None:
        """Everything is well again, programs end, and nobody wants anything more. Then nothing may be left."""
        self.story.append(("settle", {}))
        for node in self.nodes:
            node.cut, node.doom, node.clock_off = False, None, 0.0
            node.fates.clear()
            node.late.clear()
            node.engine.fates.clear()
            if not node.engine.up:
                node.engine.come_up()
            node.begin()
        if self.plane.app is None:
            self.plane.start()
        for round_ in range(25):
            self._bring_to_an_end(round_)
            self.life(6)
            self.watcher.look()
            if round_ >= 2 and self.watcher.is_over():
                break
        self.watcher.end()

    def _bring_to_an_end(self, round_: int) -> None:
        if self.plane.rolled_back:
            self.plane.accept(force=round_ >= 5)
            self.plane.tick()
        for node in self.nodes:
            self.plane.call("POST", f"/nodes/{node.id}/uncordon")
            for box in node.engine.running():
                self._end(node, box, 0, told=True)
        for row in self.plane.rows():
            if row["status"] == "sleeping":
                self.plane.call("POST", f"/tasks/{row['id']}/{'wake' if round_ < 5 else 'stop'}")
        self.wait(30.0)  # of silence, which is no loss yet

    # Inside

    def _node(self, number: int) -> Node:
        return self.nodes[number % len(self.nodes)]

    @staticmethod
    def _end(node: Node, box: Container, code: int, *, told: bool) -> None:
        node.engine.end(box, code, "program")
        if told:
            node.event(box)


def play(story: list[Step]) -> World:
    """A story once more, on a fresh world. Raises Broken where it breaks."""
    world = World()
    try:
        for name, arguments in story:
            if name == "settle":
                world.settle()
            else:
                world.do(name, **arguments)
    except BaseException:
        world.close()
        raise
    return world
