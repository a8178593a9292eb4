"""One node: a real agent without its threads, a model engine, and a network that loses things."""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from runtime.agent.app import Agent
from runtime.agent.app import Parts as AgentParts
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.hardware.virtual import virtual_cards
from runtime.agent.link.client import ServerClient
from runtime.agent.link.errors import LinkError, Unavailable
from runtime.agent.link.identity import Machine, take_identity
from runtime.agent.loop import Loop
from runtime.agent.settings import AgentSettings
from runtime.agent.state import make_state_dir
from runtime.agent.tasks import executor as executors
from runtime.agent.tasks.engines import Engine as AgentEngine
from runtime.agent.tasks.journal import Journal, open_journal
from runtime.agent.tasks.journal_file import JournalError
from runtime.agent.tasks.ownership import keep_to_machine
from runtime.agent.tasks.parts import Parts
from runtime.agent.tasks.pins import Pins
from runtime.protocol.hardware import Host
from runtime.protocol.states import Driver as DriverName
from tests.faults.model.clock import Clock
from tests.faults.model.engine import UP_S, Container, Engine, ModelDriver
from tests.faults.model.plane import KEY, Plane
from tests.faults.model.workers import SteppedTimers, Workers

CARDS = 2


class Killed(BaseException):
    """The agent is gone, in the middle of what it did. Nothing of the product catches this."""


@dataclass
class Late:
    """A request that is on its way still."""

    method: str
    path: str
    headers: dict[str, str]
    query: Any
    data: bytes | None


@dataclass
class Answer:
    status_code: int
    headers: Mapping[str, str]
    raw: Any

    def close(self) -> None:
        pass


class _Body(io.BytesIO):
    def read1(self, size: int | None = -1, decode_content: bool = False) -> bytes:  # type: ignore[override]
        return super().read1(size)


class ModelClient(ServerClient):
    """The agent's own client; only the socket is the world's."""

    node: Node

    def _send(self, session: Any, method: Any, url: str, headers: Any, query: Any, data: Any, limits: Any) -> Any:
        if data is not None:
            headers = {**headers, "Content-Type": "application/json"}
        return self.node.exchange(Late(method, url.removeprefix(self.address.base), headers, query, data))


@dataclass
class Node:
    """``fates`` are those of its next requests: good, drop, lost (the answer), twice, late, html. ``doom`` counts down
    at each call to engine and server and at each step: at 0 the agent is killed there."""

    id: str
    folder: Path
    plane: Plane
    clock: Clock
    cut: bool = False
    fates: deque[str] = field(default_factory=deque)
    late: list[Late] = field(default_factory=list)
    boots: int = 0
    clock_off: float = 0.0
    doom: int | None = None
    unforeseen: list[str] = field(default_factory=list)
    agent: Agent | None = None
    journal_faults: int = 0
    reconciled_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.engine = Engine(self.id, self.clock.monotonic, self.wall)
        self.workers = Workers()
        self.timers = SteppedTimers(self.monotonic)
        make_state_dir(self.folder)
        self.boot()

    # Clocks

    def monotonic(self) -> float:
        return self.clock.now - self.engine.machine_began

    def wall(self) -> float:
        return self.clock.time() + self.clock_off

    # Life

    def boot(self) -> None:
        """The machine starts, and with it engine and agent."""
        self.boots += 1
        self.engine.machine_began = self.clock.now - UP_S
        self.engine.come_up()
        self.begin()

    def begin(self) -> None:
        """The agent starts. What its journal says is all that it knows."""
        if self.agent is None:
            self.take(self._begin)

    def _begin(self) -> None:
        self.workers, self.timers = Workers(), SteppedTimers(self.monotonic)
        self.reconciled_at = float("-inf")
        settings = AgentSettings(
            server_url="http://127.0.0.1:3333",
            api_key=KEY,
            state_dir=str(self.folder),
            node_id=self.id,
            report_attempts=1,
        )
        journal = open_journal(self.folder)
        machine = Machine(
            self.id, f"machine-{self.id}", f"boot-{self.id}-{self.boots}", (f"m-{self.id}", f"p-{self.id}")
        )
        identity = take_identity(self.folder, self.id, machine=machine)
        keep_to_machine(journal, identity.parts, copied=identity.copied)
        client = ModelClient(settings, identity)
        client.node = self
        driver: Any = ModelDriver(self.engine, self.passing)
        timers = self.timers
        parts = partial(
            Parts, clock=self.monotonic, wall=self.wall, removals=self.workers.pool("removal", 2),
            pins=Pins(self.folder / "pins"),
        )  # fmt: skip
        patches: dict[str, Any] = {
            "Pool": self.workers.pool,
            "Timers": lambda: timers,
            "Parts": parts,
            "Engine": partial(AgentEngine, clock=self.monotonic),
            "boot_mark": lambda: f"{self.id}-{self.boots}",
        }
        cards = GpuSnapshot(virtual_cards(CARDS, self.id).gpus, source="virtual")
        with mock.patch.multiple(executors, **patches):
            executor = executors.Executor(
                settings, client, {DriverName.DOCKER: driver}, journal, identity, lambda: cards,
                trace=lambda uid, attempt, step: self.passing(),
            )  # fmt: skip
        still = SimpleNamespace(snapshot=lambda: cards, loop=Loop("still", 60, lambda: None), stuck_tools=list)
        host: Any = SimpleNamespace(snapshot=lambda: Host(hostname=self.id), loop=still.loop)
        self.journal: Journal = journal
        self.executor = executor
        inventory: Any = still
        self.agent = Agent(AgentParts(settings, identity, client, inventory, host, executor, journal=journal.health))
        executor.start()

    def kill(self, journal: str = "kept") -> None:
        """SIGKILL: what was in memory is gone. ``journal``: kept, lost or torn."""
        if self.agent is None:
            return
        self.agent, self.doom = None, None
        self.workers = Workers()
        self.journal.close()
        path = self.folder / "journal.db"
        if journal != "kept":
            self.journal_faults += 1
            for end in ("", "-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)
            if journal == "torn":
                path.write_bytes(b"SQLite format 3\0 and then nothing of use")

    def passing(self) -> None:
        """The agent comes by a place where it may be killed."""
        if self.agent is None:
            return
        if self.doom is not None:
            self.doom -= 1
            if self.doom <= 0:
                raise Killed

    def take(self, work: Callable[[], None]) -> None:
        """Let the agent do something. What nobody foresaw is a finding."""
        try:
            work()
        except Killed:
            self.kill()
        except (LinkError, JournalError):
            pass  # its loops write that down and come again
        except Exception as error:
            self.unforeseen.append(f"{self.id}: {type(error).__name__}: {error}")

    # What its threads would do

    def beat(self) -> None:
        agent = self.agent
        if agent is not None:
            self.take(agent.heartbeats.beat)

    def take_tasks(self) -> None:
        if self.agent is not None:
            self.take(self.executor._taking.take)

    def poll(self) -> None:
        if self.agent is not None:
            engine = self.executor._parts.drivers[DriverName.DOCKER]
            self.take(lambda: self.executor._poll(engine))

    def reconcile(self) -> None:
        if self.agent is not None:
            self.reconciled_at = self.clock.now
            self.take(self.executor._reconcile)

    def event(self, box: Container) -> None:
        if self.agent is not None and self.engine.up:
            self.take(lambda: self.executor._on_event(box.key[0]))

    def step(self, which: int) -> None:
        """One piece of work of one worker."""
        ready = self.workers.ready()
        if self.agent is not None and ready:
            place = ready[which % len(ready)]
            self.take(lambda: self.workers.run(place))

    def steps(self, limit: int = 200) -> None:
        """All that waits."""
        while self.agent is not None and self.workers.ready() and limit:
            limit -= 1
            self.step(0)

    def fire(self) -> None:
        if self.agent is not None:
            self.take(self.timers.fire)

    # The network

    def exchange(self, request: Late) -> Answer:
        self.passing()
        fate = self.fates.popleft() if self.fates else "good"
        if fate == "late" and not self.cut:
            self.late.append(request)
        if self.cut or fate in ("drop", "late") or self.plane.app is None:
            raise Unavailable("no connection within 3 s")
        answer = self.send(request)
        if fate == "twice":
            answer = self.send(request)
        self.passing()
        if fate == "lost":
            raise Unavailable("no answer within 30 s")
        if fate == "html":
            raise Unavailable("an answer that is no JSON", answered=True, status=502)
        return answer

    def send(self, request: Late) -> Answer:
        assert self.plane.app is not None
        reply = self.plane.app.test_client().open(
            request.path, method=request.method, headers=request.headers, query_string=request.query, data=request.data
        )
        return Answer(reply.status_code, dict(reply.headers), _Body(reply.data))

    def deliver_late(self) -> None:
        """What was on its way comes to the server now; nobody waits for the answers any more."""
        late, self.late = self.late, []
        if self.plane.app is not None:
            for request in late:
                self.send(request)

    def status(self) -> Any:
        return json.loads((self.folder / "status.json").read_text())
