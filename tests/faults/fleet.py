"""A fleet for fault scenarios: a control plane, and on each node an agent behind two proxies, with a ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.demo import fleet as installing
from tests.faults import commits, facts, ledger
from tests.faults.agent_process import DROP_IN, UNIT, AgentProcess
from tests.faults.engine_proxy import DOCKER_HOST, EngineProxy
from tests.faults.ledger import Ledger
from tests.faults.server_proxy import ServerProxy
from tests.faults.world import TERMINAL, Scenario, World
from tests.integration.waiting import until
from tests.lab import Node, places
from tests.lab.control_plane import ControlPlane
from tests.lab.process import Progress

FIRST_PORT = 10  # of the proxies, above this user's first port
PLANE = {"heartbeat_interval_s": 1, "start_grace_s": 5}
AGENT = {
    "HETEROFLEET_DOCKER_HOST": DOCKER_HOST,
    "HETEROFLEET_POLL_INTERVAL_S": "1",
    "HETEROFLEET_RECONCILE_INTERVAL_S": "3",
    "HETEROFLEET_REPORT_TOTAL_S": "3",
    "HETEROFLEET_REPORT_BACKOFF_MAX_S": "1",
    "HETEROFLEET_DISK_MIN_FREE_MIB": "10",
    "HETEROFLEET_PROCESS_DRIVER": "true",
}
"""Shorter intervals, the same logic."""
CARDS = 2


_BOXES = "docker ps -aq --filter label=heterofleet.uid"
_REMOVE = f'old=$({_BOXES}); [ -z "$old" ] || docker rm -f -v $old >/dev/null 2>&1 || :; {_BOXES}'


@dataclass
class Place:
    """One node of the fleet with all that surrounds its agent. ``server`` and ``engine`` are the proxies."""

    node: Node
    server: ServerProxy
    engine: EngineProxy
    agent: AgentProcess
    ledger: Ledger
    commits: commits.Commits | None = None

    @property
    def name(self) -> str:
        return self.node.name

    def good(self) -> None:
        """No faults of the proxies any more."""
        self.server.good()
        self.engine.good()
        if self.commits is not None:
            self.commits.on_commit = lambda: None


@dataclass
class Fleet:
    """``accepted``: every task that the server has taken from :meth:`submit`; the checker asks about all of them."""

    plane: ControlPlane
    places: list[Place]
    accepted: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        return [place.node for place in self.places]

    def place(self, name: str) -> Place:
        return next(place for place in self.places if place.name == name)

    def submit(self, task_id: str, *words: str, **members: Any) -> str:
        """A task that keeps the ledger; ``words`` are the task image's, ``members`` those of the API."""
        status, answer = self.plane.request("POST", "/api/v1/tasks", ledger.body(task_id, *words, **members))
        assert status == 201, answer
        self.accepted.append(task_id)
        return task_id

    def task(self, task_id: str) -> dict[str, Any]:
        return dict(self.plane.get(f"/api/v1/tasks/{task_id}"))

    def wait(self, task_id: str, what: str = "ended", timeout: float = 60) -> dict[str, Any]:
        """Until the task's status or phase is ``what``; ``ended``: any terminal status."""
        seen: dict[str, Any] = {}

        def reached() -> bool:
            status, body = self.plane.request("GET", f"/api/v1/tasks/{task_id}")
            if status != 200:
                return False
            seen.update(body)
            return body["status"] in TERMINAL if what == "ended" else what in (body["status"], body["phase"])

        with contextlib.suppress(AssertionError):
            until(f"{task_id} is {what}", reached, timeout)
            return seen
        shown = {name: seen.get(name) for name in ("status", "phase", "attempt", "node_id", "reason", "error")}
        raise AssertionError(f"{task_id} is not {what} within {timeout:g} s: {shown}")

    def order(self, task_id: str, what: str) -> None:
        """The operator's word: stop, sleep, wake or reschedule."""
        status, body = self.plane.request("POST", f"/api/v1/tasks/{task_id}/{what}")
        assert status == 202, body

    def good(self) -> None:
        for place in self.places:
            place.good()

    def forget_tasks(self) -> None:
        """From now on only new tasks are answered for; what the ledgers say of the others is gone."""
        self.accepted.clear()
        for place in self.places:
            place.ledger.empty()

    def hold(self, scenario: Scenario = Scenario(), timeout: float = 60) -> World:
        """Assert the invariants over all that this fleet has ever taken."""
        return facts.hold(self.plane, self.nodes, self.accepted, scenario, timeout)


@contextlib.contextmanager
def fleet(
    nodes: Sequence[Node],
    *,
    name: str = "faults",
    plane: Mapping[str, Any] = PLANE,
    agent: Mapping[str, str] = AGENT,
    watch_commits: bool = False,
    first_port: int = FIRST_PORT,
) -> Iterator[Fleet]:
    """Install on ``nodes``, and leave them as they were. ``watch_commits`` lets agents stop at each journal commit."""
    control = ControlPlane(name, **plane)
    control.remove()
    _side_by_side(clean, nodes)
    built = Fleet(control, [])
    try:
        control.start()
        installing.publish_builds(control, installing.agent_builds(Progress()))
        address = control.listen.rpartition(":")
        for index, node in enumerate(nodes):
            proxy = ServerProxy((address[0], int(address[2])), places.HOST_ADDRESS, places.port(first_port + index))
            place = Place(node, proxy, EngineProxy(node), AgentProcess(node), Ledger(node))
            place.commits = commits.Commits(node) if watch_commits else None
            built.places.append(place)

        def install(place: Place) -> None:
            place.ledger.install()
            front = SimpleNamespace(url=place.server.url, key=control.key)
            installing.install(front, place.node)  # type: ignore[arg-type]
            place.agent.configure({**agent, **(commits.ENVIRONMENT if watch_commits else {})})
            place.node.run(["systemctl", "restart", UNIT])

        _side_by_side(install, built.places)
        installing.wait_online(control, len(nodes), CARDS)
        yield built
    finally:
        for place in built.places:
            place.good()
        _side_by_side(clean, nodes)
        for place in built.places:
            if place.commits is not None:
                place.commits.close()
            place.server.close()
            place.engine.close()
        control.remove()


def clean(node: Node) -> None:
    """No agent, no container of a task, no ledger."""
    node.sh(
        f"systemctl disable -q --now {UNIT} 2>/dev/null || :; systemctl reset-failed {UNIT} 2>/dev/null || :; "
        f"rm -rf /opt/heterofleet /etc/heterofleet /var/lib/heterofleet /etc/systemd/system/{UNIT} {DROP_IN}; "
        f"rmdir {DROP_IN.rpartition('/')[0]} 2>/dev/null || :; systemctl daemon-reload",
        timeout=120,
    )
    until(f"no container is left on {node.name}", lambda: not node.sh(_REMOVE, timeout=120))
    Ledger(node).remove()


def _side_by_side(work: Any, subjects: Sequence[Any]) -> None:
    with ThreadPoolExecutor(max(1, len(subjects))) as pool:
        list(pool.map(work, subjects))
