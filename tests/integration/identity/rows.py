"""The rows of the identity table, side by side: each is started at once, and its test waits for its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.identity.machine import Machine, Servers
from tests.integration.waiting import until
from tests.lab import Lab, Node

AT_ONCE = 8


@dataclass
class Place:
    """Where one row happens. ``name`` is its own: node ids and hosts of a row begin with it."""

    name: str
    folder: Path
    servers: Servers
    lab: Lab
    machines: list[Machine] = field(default_factory=list)

    def engine(self, number: int) -> str:
        """The socket of a lab node's engine."""
        return f"unix://{self.lab.node(number).docker_socket}"

    def node(self, number: int) -> Node:
        return self.lab.node(number)

    def machine(self, label: str, hostname: str | bytes | None = None, **settings: Any) -> Machine:
        made = Machine(
            self.folder / label, self.servers, f"{self.name}-{label}" if hostname is None else hostname, **settings
        )
        self.machines.append(made)
        return made

    def clone(self, of: Machine, label: str, **settings: Any) -> Machine:
        self.machines.append(of.clone(self.folder / label, **settings))
        return self.machines[-1]

    def running(self, number: int, task_id: str) -> list[tuple[str, str]]:
        """(id, start time) of the task's running containers on the lab node's engine."""
        node = self.node(number)
        ids = node.docker("ps", "-q", "--no-trunc", "--filter", f"label=heterofleet.task={task_id}").stdout.split()
        return [(one, node.docker("inspect", "-f", "{{.State.StartedAt}}", one).stdout.strip()) for one in ids]

    def at_work(self, number: int, node_id: str, *command: str, **spec: Any) -> tuple[str, list[tuple[str, str]]]:
        """A task of the node that runs on the lab node's engine; its id, and :meth:`running` of it."""
        task = self.servers.submit(node_id, *command, **spec)
        self.servers.is_status(task, "running")
        return task, until("the container runs", lambda: self.running(number, task))

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        for node in self.lab.nodes[:2]:
            labels = node.docker("ps", "-aq", "--format", '{{.ID}} {{.Label "heterofleet.node"}}').stdout.splitlines()
            mine = [line.split()[0] for line in labels if line.split()[1:] and line.split()[1].startswith(self.name)]
            if mine:
                node.docker("rm", "-f", "-v", *mine)


Row = Callable[[Place], None]


class Running:
    """All chosen rows, each on a thread; how one ended is raised by :meth:`result`."""

    def __init__(self, rows: dict[str, Row], make: Callable[[str], Place]) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._making = threading.Lock()
        self._make = make
        self._futures: dict[str, Future[None]] = {
            name: self._pool.submit(self._one, name, row) for name, row in rows.items()
        }

    def _one(self, name: str, row: Row) -> None:
        with self._making:
            place = self._make(name)
        try:
            row(place)
        finally:
            place.close()

    def result(self, name: str) -> None:
        self._futures[name].result(180)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
