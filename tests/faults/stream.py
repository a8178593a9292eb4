"""A steady stream of tasks of every kind, submitted by an operator who asks again until he is answered."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults import ledger
from tests.faults.fleet import Fleet

OPEN_AT_ONCE = 18
PAUSE_S = (0.3, 1.2)


@dataclass(frozen=True)
class Kind:
    """``words`` and ``members`` of a task; ``order`` is what the operator wants of it a little later."""

    name: str
    weight: int
    words: Callable[[random.Random], tuple[str, ...]]
    members: dict[str, Any] = field(default_factory=dict)
    order: str | None = None


def _ends(rng: random.Random) -> tuple[str, ...]:
    return ("print", "done", "sleep", str(rng.randint(0, 4)), "exit", str(rng.choice((0, 0, 1, 7, 42))))


def _served(rng: random.Random) -> tuple[str, ...]:
    return ("on-term", str(rng.randint(0, 9)), "forever")


KINDS = (
    Kind("job", 6, _ends),
    Kind("card", 4, _ends, {"gpus": {"count": 1}}),
    Kind("signal", 1, lambda rng: ("sleep", "1", "die", "KILL")),
    Kind("overdue", 1, lambda rng: ("forever",), {"timeout_s": 3, "stop_grace_s": 1}),
    Kind("training", 2, _ends, {"kind": "training"}),
    Kind("moves", 3, _ends, {"on_node_lost": "reschedule", "max_attempts": 4}),
    Kind("served", 3, _served, {"gpus": {"count": 1}}, "stop"),
    Kind("nap", 1, _served, {"gpus": {"count": 1}}, "sleep"),
    Kind("process", 2, lambda rng: ("/bin/sh", "-c", f"sleep {rng.randint(0, 3)}; exit {rng.choice((0, 3))}"),
         {"driver": "process", "user": "nobody"}),
    Kind("deleted", 1, _served, {}, "delete"),
)  # fmt: skip


class Stream:
    """Tasks in its own thread from :meth:`start` to :meth:`stop`. ``deleted``: ids that the operator deleted."""

    def __init__(self, fleet: Fleet, rng: random.Random, mark: str) -> None:
        self.deleted: set[str] = set()
        self._fleet, self._rng, self._mark = fleet, rng, mark
        self._over = threading.Event()
        self._orders: list[tuple[float, str, str]] = []
        self._endless: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No more tasks; those that nobody would end are stopped."""
        self._over.set()
        self._thread.join()
        for _, task_id, what in self._orders:
            if what == "delete":
                self._order(task_id, what)
        for task_id in self._endless:
            if task_id not in self.deleted:
                self._order(task_id, "stop")

    def _run(self) -> None:
        for number in itertools.count():
            if self._over.wait(self._rng.uniform(*PAUSE_S)):
                return
            now = time.monotonic()
            due = [one for one in self._orders if one[0] <= now]
            self._orders = [one for one in self._orders if one[0] > now]
            for _, task_id, what in due:
                self._order(task_id, what)
            if self._open() < OPEN_AT_ONCE:
                self._submit(number)

    def _submit(self, number: int) -> None:
        kind = self._rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
        task_id = f"{self._mark}-{number}-{kind.name}"
        body = ledger.body(task_id, *kind.words(self._rng), **kind.members)
        status, answer = self._ask("POST", "/api/v1/tasks", body)
        assert status in (200, 201), answer
        self._fleet.accepted.append(task_id)
        if kind.order is not None:
            self._endless.append(task_id)
            self._orders.append((time.monotonic() + self._rng.uniform(2, 8), task_id, kind.order))

    def _order(self, task_id: str, what: str) -> None:
        """What cannot be ordered in the task's present state is not ordered."""
        path = f"/api/v1/tasks/{task_id}"
        if what == "delete":
            self.deleted.add(task_id)
            self._ask("DELETE", path)
        else:
            self._ask("POST", f"{path}/{what}")

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """An answer of the control plane, as often as it takes: the same words twice do nothing twice."""
        while True:
            status, answer = self._fleet.plane.request(method, path, body)
            if status not in (0, 500, 502, 503):
                return status, answer
            time.sleep(0.2)

    def _open(self) -> int:
        _, answer = self._ask("GET", "/api/v1/tasks?status=pending,scheduled,running,sleeping&limit=1000")
        return len(answer["tasks"])
