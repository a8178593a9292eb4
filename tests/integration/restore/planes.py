"""A control plane in this process whose database file is copied and put back, and nodes that only speak."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from runtime.server.command import server
from tests.integration.server_core.plane import FULL, KEY, Agent, Plane, running, wait_until

SETTINGS: dict[str, Any] = {
    "heartbeat_interval_s": 1,
    "start_grace_s": 0,
    # Nodes here beat only when a test lets them: one that is slow makes nobody unreachable.
    "unreachable_after_beats": 60,
    "lost_after_beats": 120,
}


@dataclass
class Speaker:
    """A node that says what it holds: ``health`` its claims, ``orphans`` what it tells of the lost time."""

    node_id: str
    seen: int = 0
    lost: dict[str, Any] | None = None
    health: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[dict[str, Any]] | None = field(default_factory=list)
    agent: Agent | None = None

    def beat(self, plane: Plane, **members: Any) -> dict[str, Any]:
        """One beat, and the answer; what it has seen and what it is asked goes into the next one."""
        if self.agent is None:
            self.agent = Agent(plane, self.node_id, f"instance-{self.node_id}", boot_id=f"boot-of-{self.node_id}",
                               fingerprint=f"machine-{self.node_id}")  # fmt: skip
        self.agent.plane = plane
        cards = [{**card, "uuid": f"{card['uuid']}-{self.node_id}"} for card in FULL["gpus"]]
        answer = self.agent.beat(
            **{
                **FULL,
                "gpus": cards,
                "digests": {},
                "seen_revision": self.seen or None,
                "live_task_ids": [health["task_id"] for health in self.health],
                "task_health": self.health,
                "orphans": self.orphans,
                "told_from": self.lost["from"] if self.lost else None,
                **members,
            }
        )
        assert answer.status == 200, answer.raw
        body: dict[str, Any] = answer.body
        self.seen, self.lost = max(self.seen, body["revision"]), body.get("lost")
        return body

    def try_beat(self, plane: Plane) -> int:
        """The status of a beat that may be refused."""
        assert self.agent is not None
        return self.agent.beat(**{**FULL, "host": {**FULL["host"], "uptime_s": 1_000_000}}).status

    def card(self, number: int = 0) -> dict[str, Any]:
        return {"uuid": f"{FULL['gpus'][number]['uuid']}-{self.node_id}"}

    def holds(self, task_id: str, uid: str, attempt: int = 1, state: str = "running", **entry: Any) -> None:
        """A claim of the lost time."""
        self.orphans = self.orphans or []
        cards = [card["uuid"] for card in entry.get("assigned", ())] if state == "running" else []
        known = {
            "task_id": task_id,
            "uid": uid,
            "attempt": attempt,
            "phase": "running",
            "since": "2026-01-01T00:00:00Z",
        }
        if state in ("running", "sleeping"):
            self.health.append({**known, "container_id": f"c-{task_id}"})
        self.orphans.append(
            {
                "container_id": f"c-{task_id}",
                "task_id": task_id,
                "uid": uid,
                "attempt": attempt,
                "state": state,
                "claim_token": f"token-of-{task_id}",
                "gpus": cards,
                "spec": {"name": task_id, "image": "registry/one:1"},
                **entry,
            }
        )

    def put(self, plane: Plane, task_id: str, attempt: int, source: str, target: str, **more: Any) -> Any:
        assert self.agent is not None
        body = {"node_id": self.node_id, "attempt": attempt, "claim_token": f"token-of-{task_id}",
                "from_status": source, "status": target, **more}  # fmt: skip
        return plane.call("PUT", f"/api/v1/tasks/{task_id}", body, self.agent.headers)


class World:
    """The folder of a control plane over its restores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.copy_file = folder.with_name(f"{folder.name}-copy.db")
        self.config = folder.with_name(f"{folder.name}.yaml")
        self.config.write_text(
            json.dumps({**SETTINGS, "state_dir": str(folder), "api_key": KEY, "doorbell_listen": ""})
        )
        self.config.chmod(0o600)

    @contextlib.contextmanager
    def serving(self, **settings: Any) -> Iterator[Plane]:
        with running(self.folder, **{**SETTINGS, **settings}) as plane:
            yield plane

    @property
    def database(self) -> Path:
        return self.folder / "heterofleet.db"

    def copy(self) -> None:
        self.copy_file.unlink(missing_ok=True)
        with (
            contextlib.closing(sqlite3.connect(self.database)) as source,
            contextlib.closing(sqlite3.connect(self.copy_file)) as made,
        ):
            source.backup(made)

    def put_back(self) -> None:
        for path in self.folder.glob("heterofleet.db*"):
            path.unlink()
        self.database.write_bytes(self.copy_file.read_bytes())

    def accept(self, *words: str, answer: str = "") -> Result:
        return CliRunner().invoke(
            server, ["accept-restore", "--config", str(self.config), *words], input=answer, catch_exceptions=False
        )

    def accepted(self, *words: str) -> dict[str, Any]:
        done = self.accept("--yes", "-o", "json", *words)
        assert done.exit_code == 0, done.output
        return dict(json.loads(done.stdout))

    def rows(self, query: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(query).fetchall()


def submit(plane: Plane, task_id: str, **members: Any) -> dict[str, Any]:
    made = plane.operator(
        "POST", "/api/v1/tasks", {"id": task_id, "name": task_id, "image": "registry/one:1", **members}
    )
    assert made.status == 201, made.raw
    return dict(made.body)


def task(plane: Plane, task_id: str) -> dict[str, Any]:
    return dict(plane.operator("GET", f"/api/v1/tasks/{task_id}").body)


def is_status(plane: Plane, task_id: str, status: str) -> dict[str, Any]:
    wait_until(lambda: task(plane, task_id).get("status") == status, f"{task_id} is {status}")
    return task(plane, task_id)
