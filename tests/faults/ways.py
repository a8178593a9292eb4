"""The variants of a task's way that kill points are made of, and the end that each must have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.fleet import Fleet
from tests.faults.moments import Witness
from tests.integration.waiting import until
from tests.lab import Lab

IMAGE = "lab/faults:1"
PORT = 8080


def _nothing(fleet: Fleet, witness: Witness, task_id: str) -> None:
    """The operator only waits."""


@dataclass(frozen=True, eq=False)
class Way:
    """``play`` is what the operator does after the task was accepted. ``end``: status, reason, exit codes that are
    right. ``own_from``: its moments count from the first that has this in its name on; before that the way is
    the plain one's. ``first_life``: they count from this life of the agent on."""

    name: str
    words: tuple[str, ...]
    end: tuple[str, str, tuple[int | None, ...]]
    members: dict[str, Any] = field(default_factory=dict)
    play: Callable[[Fleet, Witness, str], None] = _nothing
    pulls: bool = False
    own_from: str = ""
    first_life: int = 0

    def wrong(self, task: dict[str, Any]) -> str | None:
        """How an end differs from the only right one."""
        status, reason, codes = self.end
        if (task["status"], task["reason"]) == (status, reason) and task["exit_code"] in codes:
            return None
        found = f"{task['status']}, {task['reason']}, exit code {task['exit_code']} ({task['error']})"
        return f"ended as {found}, wanted {status}, {reason}, {' or '.join(map(str, codes))}"


def _stop_when_ready(fleet: Fleet, witness: Witness, task_id: str) -> None:
    fleet.wait(task_id, "running")
    _until_ready(fleet, task_id)
    fleet.order(task_id, "stop")


def _until_ready(fleet: Fleet, task_id: str) -> None:
    until(f"{task_id} is ready", lambda: fleet.task(task_id)["ready"], 60)


def _nap_and_stop(fleet: Fleet, witness: Witness, task_id: str) -> None:
    until(f"{task_id} runs", lambda: fleet.task(task_id)["phase"] == "running", 60)
    fleet.order(task_id, "sleep")
    fleet.wait(task_id, "sleeping")
    fleet.order(task_id, "wake")
    until(f"{task_id} runs again", lambda: _is(fleet.task(task_id), "running", "running"), 60)
    fleet.order(task_id, "stop")


def _is(task: dict[str, Any], status: str, phase: str) -> bool:
    return (task["status"], task["phase"]) == (status, phase)


def _kill_when_running(fleet: Fleet, witness: Witness, task_id: str) -> None:
    until(f"{task_id} runs", lambda: fleet.task(task_id)["phase"] == "running", 60)
    witness.kill()


WAYS = (
    Way("plain", ("print", "done", "sleep", "0.5", "exit", "0"), ("completed", "exited", (0,))),
    Way(
        "served",
        ("on-term", "3", "serve", str(PORT), "forever"),
        ("stopped", "stopped_by_operator", (3,)),
        {"health": {"type": "http", "port": PORT, "interval_s": 0.2}, "stop_grace_s": 20},
        _stop_when_ready,
        own_from="commit running ready",
    ),
    Way("failing", ("err", "no input", "sleep", "0.5", "exit", "7"), ("failed", "exited", (7,)), own_from=": exited"),
    Way(
        "overdue",
        ("ignore-term", "forever"),
        ("failed", "timeout", (124,)),
        {"timeout_s": 1, "stop_grace_s": 0.5},
        own_from="stop timeout intended",
    ),
    Way(
        "pulled",
        ("print", "done", "sleep", "0.5", "exit", "0"),
        ("completed", "exited", (0,)),
        pulls=True,
        own_from="GET /images/{name}/json",
    ),
    Way(
        "refused",
        (),
        ("failed", "start_failed", (None,)),
        {"entrypoint": ["/no/such/program"]},
        own_from="POST /containers/{id}/start",
    ),
    Way(
        "napping",
        ("on-term", "3", "forever"),
        ("stopped", "stopped_by_operator", (3,)),
        {},
        _nap_and_stop,
        own_from="stop sleep intended",
    ),
    Way(
        "process",
        ("/bin/sh", "-c", "echo done; sleep 0.5; exit 9"),
        ("failed", "exited", (9,)),
        {"driver": "process"},
    ),
    Way("adopted", ("sleep", "2", "exit", "5"), ("failed", "exited", (5,)), {}, _kill_when_running, first_life=1),
)


def with_image(way: Way, lab: Lab) -> Way:
    """The way with an image of the private registry, where it has one; call it once a run."""
    if not way.pulls:
        return way
    image = lab.registry.push_files(f"{lab.registry.address}/{IMAGE}", {"etc/faults": "1"})
    login = {"server": lab.registry.address, "username": lab.registry.user, "password": lab.registry.password}
    return dataclasses.replace(way, members={**way.members, "image": image, "registry_auth": login})


def make_ready(way: Way, fleet: Fleet, witness: Witness) -> None:
    """What must not be there before the way begins."""
    if way.pulls:
        witness.place.node.docker("rmi", "-f", str(way.members["image"]), check=False)
    if way.name == "refused":  # three of them in a row, and the server takes the node for a black hole
        fleet.plane.request("POST", f"/api/v1/nodes/{witness.place.name}/uncordon")
