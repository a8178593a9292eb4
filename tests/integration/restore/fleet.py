"""A control plane whose database is copied and put back, and agents with containers of their own on a lab node."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from tests.faults.world import TERMINAL
from tests.integration.identity.machine import Machine, Servers
from tests.integration.waiting import until
from tests.lab import Node
from tests.lab.control_plane import HETEROFLEET

PORT = 5
CARD = {"count": 1, "vendor": "virtual"}


class Agent(Machine):
    """An agent with eight virtual cards."""

    def configure(self, node_id: str | None) -> None:
        super().configure(node_id)
        path = self.folder / "agent.yaml"
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({**settings, "hardware": {"virtual_cards": 8}}))


class Fleet:
    """``a`` and ``b`` are agents; both have the engine of one node, where each has containers of its own."""

    def __init__(self, folder: Path, node: Node) -> None:
        self.folder = folder
        self.node = node
        self.servers = Servers("restore", PORT)
        self.plane = self.servers.planes[0]
        self.servers.start()
        engine = f"unix://{node.docker_socket}"
        self.a = Agent(folder / "a", self.servers, "restore-a", node_id="restore-a", engine=engine)
        self.b = Agent(folder / "b", self.servers, "restore-b", node_id="restore-b", engine=engine)

    def close(self) -> None:
        for agent in (self.a, self.b):
            agent.close()
        self.servers.remove()
        left = self.node.docker("ps", "-aq", "--filter", "label=heterofleet.uid").stdout.split()
        if left:
            self.node.docker("rm", "-f", "-v", *left)

    # Tasks

    def submit(self, node: Agent | None, *command: str, **spec: Any) -> str:
        """A task for this node, or for any."""
        return self.servers.submit(node and node.configured, *command, **spec)  # type: ignore[arg-type]

    def task(self, task_id: str) -> dict[str, Any]:
        return self.servers.task(task_id)

    def running(self, *tasks: str) -> None:
        for task_id in tasks:
            until(f"{task_id} runs: {self.task(task_id)}", lambda t=task_id: self.task(t)["phase"] == "running")

    def is_status(self, status: str, *tasks: str) -> None:
        for task_id in tasks:
            self.servers.is_status(task_id, status)

    def ended(self, *tasks: str) -> list[dict[str, Any]]:
        found = []
        for task_id in tasks:
            until(f"{task_id} ends", lambda t=task_id: self.known(t).get("status") in TERMINAL, 60)
            found.append(self.task(task_id))
        return found

    def known(self, task_id: str) -> dict[str, Any]:
        """The task, empty where the server does not know it."""
        status, body = self.servers.call("GET", f"/tasks/{task_id}")
        return dict(body) if status == 200 else {}

    def gone(self, *tasks: str) -> None:
        until(f"{tasks} are gone", lambda: not any(self.known(task_id) for task_id in tasks))

    def stopped(self, *tasks: str) -> None:
        """End these, and see their containers go."""
        for task_id in tasks:
            self.order(task_id, "stop")
        assert {task["status"] for task in self.ended(*tasks)} == {"stopped"}
        until("nothing is left of them", lambda: not set(tasks) & self.containers().keys())

    def order(self, task_id: str, action: str) -> None:
        status, body = self.servers.call("POST", f"/tasks/{task_id}/{action}")
        assert status == 202, body

    def cordon(self, node: Agent) -> None:
        assert self.servers.call("POST", f"/nodes/{node.configured}/cordon", {"reason": "test"})[0] == 200

    def uncordon(self, node: Agent) -> None:
        assert self.servers.call("POST", f"/nodes/{node.configured}/uncordon")[0] == 200

    def beats(self, count: int) -> None:
        """For so many more beats of both agents, which beat side by side."""
        self.a.beats(count)
        self.b.beats(1)

    def containers(self) -> dict[str, tuple[str, str, str]]:
        """Task id -> container, its state, and when it was started last."""
        ids = self.node.docker("ps", "-aq", "--no-trunc", "--filter", "label=heterofleet.uid").stdout.split()
        found = {}
        for one in ids:
            inspected = self.node.docker("inspect", one, check=False)
            if inspected.returncode == 0:
                document = json.loads(inspected.stdout)[0]
                state = document["State"]
                name = document["Config"]["Labels"]["heterofleet.task"]
                found[name] = (document["Id"], state["Status"], state["StartedAt"])
        return found

    def copies(self, task_id: str) -> int:
        """How many containers a task has: one of each of its attempts that is not gone."""
        words = ["ps", "-aq", "--filter", f"label=heterofleet.task={task_id}"]
        return len(self.node.docker(*words).stdout.split())

    # The database

    @property
    def database(self) -> Path:
        return self.plane.state_dir / "heterofleet.db"

    def copy(self) -> Path:
        """A copy as `sqlite3 FILE ".backup COPY"` makes one, while the server runs."""
        target = self.folder / "copy.db"
        target.unlink(missing_ok=True)
        with (
            contextlib.closing(sqlite3.connect(self.database)) as source,
            contextlib.closing(sqlite3.connect(target)) as made,
        ):
            source.backup(made)
        return target

    def put_back(self, copy: Path) -> None:
        """The copy in the database's place, by the book: the server stopped, its files removed, the copy put there."""
        self._remove_database()
        self.database.write_bytes(copy.read_bytes())
        self.plane.start()

    def put_nothing(self) -> None:
        """The server starts with an empty database."""
        self._remove_database()
        self.plane.start()

    def _remove_database(self) -> None:
        self.plane.stop()
        for path in self.plane.state_dir.glob("heterofleet.db*"):
            if "serving" not in path.name:
                path.unlink()

    def rolled_back(self) -> None:
        until("the server knows", lambda: self.readyz()["rolled_back"]["on"])

    def readyz(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.plane.url}/readyz", timeout=10) as answer:
            return dict(json.load(answer))

    def accept(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [HETEROFLEET, "server", "accept-restore", "--config", str(self.plane.settings_file), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def told(self) -> None:
        """Until both agents have told the server that was put back what they hold; before that it refuses, rightly."""

        def all_told() -> bool:
            nodes = json.loads(self.accept("--dry-run", "-o", "json").stdout)["nodes"]
            return all(node["told"] for node in nodes if node["id"] in (self.a.configured, self.b.configured))

        until("both nodes have told all", all_told)

    def accepted(self, *words: str) -> dict[str, Any]:
        self.told()
        done = self.accept("--yes", "-o", "json", *words)
        assert done.returncode == 0, done.stderr + done.stdout
        return dict(json.loads(done.stdout))

    def rows(self, query: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(query).fetchall()

    def no_card_is_doubled(self) -> None:
        """Of the cards that tasks have by the API, none is another's, and each is allocated to its holder."""
        held = self.rows("SELECT node_id, gpu_uuid, uid, attempt FROM gpu_allocations WHERE NOT releasing")
        assert len({row[:2] for row in held}) == len(held)
        status, body = self.servers.call("GET", "/tasks?status=running&limit=1000")
        assert status == 200, body
        holders = {
            (card["uuid"], task["uid"], task["attempt"]) for task in body["tasks"] for card in task["gpus_assigned"]
        }
        assert holders == {(row[1], row[2], row[3]) for row in held}
