"""A node, its engine, its agent, and tasks on it whose containers are looked at by the engine's own client."""

from __future__ import annotations

import json
import secrets
from typing import Any

from tests.faults.agent_process import UNIT
from tests.faults.fleet import Fleet
from tests.integration.waiting import until
from tests.lab import Node, task_image

DAEMON = "/etc/docker/daemon.json"
LIVING = "pending,scheduled,running,sleeping"


class Trouble:
    """Works on the fleet's only node."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.node: Node = fleet.nodes[0]
        self._daemon = self.node.get(DAEMON)

    # Tasks

    def submit(self, *words: str, **members: Any) -> str:
        task_id = f"g-{secrets.token_hex(4)}"
        body = {"id": task_id, "name": task_id, "image": task_image.NAME, "command": list(words), "stop_grace_s": 2}
        status, answer = self.fleet.plane.request("POST", "/api/v1/tasks", {**body, **members})
        assert status == 201, answer
        return task_id

    def start(self, *words: str, **members: Any) -> str:
        """A task whose container runs, as node and server know."""
        task_id = self.submit(*words, **members)
        self.runs(task_id)
        return task_id

    def runs(self, task_id: str) -> str:
        """Its container's id, once server and engine say that it runs."""
        self.fleet.wait(task_id, "running")
        until(f"the program of {task_id} runs", lambda: self.state(task_id).get("Running"))
        until(f"the agent sees {task_id} run", lambda: self.task(task_id)["phase"] == "running")
        return str(self.box(task_id)["Id"])

    def task(self, task_id: str) -> dict[str, Any]:
        return self.fleet.task(task_id)

    def end(self, task_id: str, timeout: float = 60) -> tuple[str, Any]:
        """Reason and exit code of a task's first attempt."""

        def ended() -> Any:
            task = self.task(task_id)
            closed = [one for one in task["attempts"] if one.get("reason")]
            return closed[0] if closed else None

        attempt = until(f"{task_id} has ended: {self.task(task_id)}", ended, timeout)
        return attempt["reason"], attempt.get("exit_code")

    def boxes(self, task_id: str) -> list[str]:
        label = f"label=heterofleet.task={task_id}"
        return self.node.docker("ps", "-aq", "--no-trunc", "--filter", label).stdout.split()

    def box(self, task_id: str) -> dict[str, Any]:
        """What the engine says of the task's only container; empty when there is none."""
        ids = self.boxes(task_id)
        assert len(ids) <= 1, ids
        found = self.node.docker("inspect", *ids, check=False) if ids else None
        return dict(json.loads(found.stdout)[0]) if found is not None and found.returncode == 0 else {}

    def state(self, task_id: str) -> dict[str, Any]:
        return dict(self.box(task_id).get("State") or {})

    def gone(self, task_id: str) -> None:
        until(f"the container of {task_id} is gone", lambda: not self.boxes(task_id))

    # Node and agent

    def view(self) -> dict[str, Any]:
        """The node as the server knows it."""
        return dict(self.fleet.plane.get(f"/api/v1/nodes/{self.node.name}"))

    def engine_is(self, available: bool, timeout: float = 40) -> dict[str, Any]:
        """What the heartbeat says of the engine, once it says that."""

        def said() -> Any:
            view = self.view()
            docker = view["docker"] or {}
            return view if view["state"] == "online" and docker.get("available") is available else None

        return dict(until(f"the engine is {'' if available else 'not '}available", said, timeout)["docker"])

    def beats(self, count: int = 3) -> None:
        """So many more beats arrive."""
        seen: set[str] = set()

        def enough() -> bool:
            seen.add(self.view()["last_seen_at"])
            return len(seen) > count

        until(f"{count} beats arrive", enough)

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.node.run(["heterofleet-agent", "status", "--json"], check=False).stdout))

    def log(self) -> str:
        """What the agent has logged since it was installed."""
        return self.node.run(["journalctl", "--no-pager", "--output=cat", "--unit", UNIT]).stdout

    def agent(self, verb: str) -> None:
        self.node.run(["systemctl", verb, UNIT])

    def agent_pid(self) -> str:
        return self.node.run(["systemctl", "show", "-p", "MainPID", "--value", UNIT]).stdout.strip()

    def engine_settings(self, **changed: Any) -> None:
        """What dockerd reads at its next start, or when it is told to."""
        self.node.put(DAEMON, json.dumps({**json.loads(self._daemon), **changed}))

    def answers(self) -> None:
        until("the engine answers", lambda: self.node.docker("ps", "-q", check=False).returncode == 0)

    def make_whole(self, remove: str = "") -> None:
        """``remove``: a container that the agent would only remove after a minute."""
        node = self.node
        node.thaw_engine()
        if node.get(DAEMON) != self._daemon:
            node.put(DAEMON, self._daemon)
            node.run(["systemctl", "reset-failed", "docker"], check=False)
            node.restart_engine()
        node.run(["systemctl", "unmask", "--runtime", "docker.service", "docker.socket"])
        node.run(["systemctl", "reset-failed", "docker.service", "containerd.service"], check=False)
        node.start_engine()
        self.answers()
        if remove:
            node.docker("rm", "-f", "-v", remove)
        self.agent("start")
        self.engine_is(True)
        for task in self.fleet.plane.get(f"/api/v1/tasks?status={LIVING}")["tasks"]:
            self.fleet.plane.request("DELETE", f"/api/v1/tasks/{task['id']}")
        until("nothing lives", lambda: not self.fleet.plane.get(f"/api/v1/tasks?status={LIVING}")["tasks"])
        mine = ["docker", "ps", "-aq", "--filter", "label=heterofleet.uid"]
        until("no container of a task is left", lambda: not node.run(mine).stdout.split())
