"""The executor: all parts of running tasks on this node, built and stopped in one place."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.drivers.errors import DriverError
from runtime.agent.engines.running import Server, servers
from runtime.agent.loop import Loop
from runtime.agent.tasks.boot import boot_mark
from runtime.agent.tasks.engines import Engine, Engines
from runtime.agent.tasks.events import EventThread
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.holding import Holding, users
from runtime.agent.tasks.intents import Intents
from runtime.agent.tasks.journal_file import JournalError
from runtime.agent.tasks.listing import NOT_ASKED
from runtime.agent.tasks.logs import LogShipper
from runtime.agent.tasks.orphans import Orphans, Told
from runtime.agent.tasks.ownership import work_of
from runtime.agent.tasks.parts import Claims, Parts
from runtime.agent.tasks.pool import Pool
from runtime.agent.tasks.records import KEPT_STAGES, Stage
from runtime.agent.tasks.rounds import Rounds
from runtime.agent.tasks.steps import Trace, no_trace
from runtime.agent.tasks.strangers import Strangers
from runtime.agent.tasks.taking import Taking
from runtime.agent.tasks.timers import Timers
from runtime.agent.tasks.way import Way
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.hardware import GpuHolder
from runtime.protocol.heartbeat import DockerState, Foreign, HeartbeatAnswer, ProcessState, Slots, TaskHealth
from runtime.protocol.masking import Masker
from runtime.protocol.states import Driver as DriverName
from runtime.protocol.states import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.agent.drivers.driver import Driver
    from runtime.agent.drivers.images import DockerImages
    from runtime.agent.hardware.inventory import GpuSnapshot
    from runtime.agent.link.client import ServerClient
    from runtime.agent.link.identity import Identity
    from runtime.agent.settings import AgentSettings
    from runtime.agent.tasks.journal import Journal
    from runtime.agent.tasks.parts import Route

log = logging.getLogger(__name__)

REPORTERS = 4
PROBERS = 4
IMAGES_EVERY_S = 60.0
FRESH_POLLS = 3
POLLS = {DriverName.DOCKER: "containers", DriverName.PROCESS: "processes"}
"""The names of the loops that look at each engine."""

PROVEN_AFTER = 2.0
"""After a start of the machine nothing is taken, started, ended or reported before the server has accepted beats for
so many intervals. This may be a copy of a machine that lives: until then that one has spoken, and the server has told
the two apart."""


class Executor:
    """Runs the tasks that the server gives this node. Made without side effects; ``start`` begins.

    ``on_engine_known()`` is called once, when Docker has answered or failed for the first time.
    """

    def __init__(
        self,
        settings: AgentSettings,
        client: ServerClient,
        drivers: Mapping[DriverName, Driver],
        journal: Journal,
        identity: Identity,
        snapshot: Callable[[], GpuSnapshot],
        *,
        masker: Optional[Masker] = None,
        on_engine_known: Callable[[], None] = lambda: None,
        trace: Trace = no_trace,
        route: Optional[Route] = None,
    ) -> None:
        workers, fresh_s = settings.workers, FRESH_POLLS * settings.poll_interval_s + 1.0
        engines: Engines = {
            name: Engine(
                name,
                driver,
                journal,
                fresh_s,
                on_engine_known,
                optional=name is DriverName.PROCESS or settings.process_driver,
            )
            for name, driver in drivers.items()
        }
        self._parts = Parts(
            settings=settings,
            client=client,
            drivers=engines,
            journal=journal,
            identity=identity,
            snapshot=snapshot,
            steps=Pool("task", workers),
            pulls=Pool("pull", workers),
            reports=Pool("report", REPORTERS),
            probes=Pool("probe", PROBERS),
            timers=Timers(),
            boot=boot_mark(),
            trace=trace,
            proven=not identity.booted,
            masker=masker or Masker(),
            route=route,
        )
        self._claims = Claims()
        word = ServerWord(client.seen)
        self._way = Way(self._parts, self._claims, word)
        self._intents = Intents(self._parts, self._claims, self._way, word)
        self._rounds = Rounds(self._parts, self._claims, self._way, self._intents, word)
        self._logs = LogShipper(self._parts, self._claims)
        self._parts.last_words = self._logs.last_words
        self._events = [EventThread(engine, self._on_event) for engine in engines.values()]
        self._strangers = Strangers(self._parts, self._claims)
        self._holding = Holding(self._parts, self._claims)
        self._orphans = Orphans(self._parts, self._claims, self._intents, word, self._strangers)
        self._images: Optional[list[str]] = None
        self._images_at: Optional[float] = None
        self._first_good: Optional[float] = None
        self._taking = Taking(self._parts, self._claims, self._way, word)
        poll = settings.poll_interval_s
        # The reconciliation at the start lists for both.
        first = poll if self._parts.proven else 0.0
        self._poll_loops = [
            Loop(POLLS[name], poll, partial(self._poll, engine), backoff=None, first_delay_s=first)
            for name, engine in engines.items()
        ]
        self._reconcile_loop = Loop("reconcile", settings.reconcile_interval_s, self._reconcile)

    # Life

    def start(self) -> None:
        """Take over what the journal knows (no server needed), then look, reconcile and take tasks."""
        self._parts.timers.start()
        for record in self._parts.journal.claims():
            held = Held(record, taken_at=self._parts.clock(), maybe_made=True)
            if record.stage in KEPT_STAGES:
                held.phase = Phase.SLEEPING if record.stage is Stage.SLEEPING else Phase.RUNNING
            held.waits = not self._parts.proven
            self._claims.add(held)
            self._way.take_up(held)
        for events in self._events:
            events.start()
        for loop in self.loops():
            loop.start()

    def stop(self, deadline_s: float) -> None:
        """Take no more steps; containers are left running on purpose."""
        self._parts.stop_event.set()
        for loop in self.loops():
            loop.stop()
        for events in self._events:
            events.stop()
        self._logs.stop()
        self._parts.timers.stop()
        parts = self._parts
        for pool in (parts.steps, parts.pulls, parts.reports, parts.probes, parts.removals):
            pool.stop(0.0)
        end = self._parts.clock() + deadline_s
        for pool in (self._parts.steps, self._parts.reports):
            pool.stop(max(0.0, end - self._parts.clock()))
        try:
            self._parts.journal.settle()
        except JournalError as error:
            log.warning("%s", error)

    def loops(self) -> list[Loop]:
        return [self._taking.loop, *self._poll_loops, self._reconcile_loop]

    # What the heartbeat's answer brings

    def wake(self) -> None:
        """There may be tasks to take."""
        self._taking.wake()

    def on_answer(self, answer: HeartbeatAnswer) -> None:
        """Intents and log requests of one good beat; returns at once."""
        self._prove(answer.interval_s)
        self._intents.on_answer(answer)
        self._parts.reports.submit("unclaimed", self._rounds.judge_unclaimed)
        self._logs.follow(answer)

    def _prove(self, interval_s: float) -> None:
        """One more good beat on a machine that was started anew."""
        if self._parts.proven:
            return
        now = self._parts.clock()
        if self._first_good is None:
            self._first_good = now
        if now - self._first_good >= PROVEN_AFTER * interval_s:
            self._parts.proven = True
            for held in self._claims.all():
                held.waits = False
                self._way.advance(held)
            self._reconcile_loop.wake()

    # What the heartbeat tells

    def task_health(self) -> list[TaskHealth]:
        """One entry per claim held."""
        return [held.health() for held in self._claims.all() if held.record.stage is not Stage.CLAIMING]

    def live_task_ids(self) -> Optional[list[str]]:
        """Tasks of ours whose container was seen running just now; None when an engine that may have some cannot be
        listed: the server takes who is missing in this list for gone."""
        running: set[Optional[str]] = set()
        for engine in self._parts.drivers.values():
            listing = engine.last.trusted()
            if listing is not None:
                running |= {seen.id for seen in listing.containers if seen.state in ("running", "paused")}
            elif not engine.absent() or any(held.record.driver is engine.name for held in self._claims.all()):
                return None
        return sorted(
            {
                held.record.task_id
                for held in self._claims.all()
                if held.record.container_id in running or (held.alive and held.record.container_id is not None)
            }
        )

    def slots(self) -> Slots:
        return Slots(total=self._parts.settings.max_tasks, used=self._claims.used())

    def docker_state(self) -> Optional[DockerState]:
        """None before it was asked for the first time: unknown is not "none"."""
        last = self._parts.drivers[DriverName.DOCKER].last
        engine, error = last.engine, last.error
        if error == NOT_ASKED:
            return None
        if error is not None or engine is None:
            return DockerState(available=False, error=error)
        return DockerState(True, engine.version, list(engine.runtimes), engine.id)

    def process_state(self) -> Optional[ProcessState]:
        """None where plain processes are switched off, or were not looked at yet."""
        engine = self._parts.drivers.get(DriverName.PROCESS)
        if engine is None or not self._parts.settings.process_driver or engine.last.error == NOT_ASKED:
            return None
        facts, error = engine.last.engine, engine.last.error
        if error is not None or facts is None:
            return ProcessState(available=False, error=error)
        return ProcessState(True, engine.driver.confined, facts.version)

    def engine_root(self) -> Optional[str]:
        """Where Docker keeps its images, as it said last."""
        docker = self._parts.drivers.get(DriverName.DOCKER)
        return docker.facts.root_dir if docker is not None else None

    def images(self) -> Optional[list[str]]:
        """References on the engine, None while it cannot be asked."""
        docker = self._parts.drivers.get(DriverName.DOCKER)
        return self._images if docker is not None and docker.answers else None

    def servers(self) -> list[Server]:
        """Running tasks that may be inference engines."""
        return servers(self._parts, self._claims)

    def foreign(self) -> Optional[list[Foreign]]:
        return self._strangers.foreign()

    def holders(self, processes: list[GpuHolder]) -> list[GpuHolder]:
        """``processes`` that hold cards, with whose they are."""
        return self._holding.told(processes)

    def card_users(self) -> Optional[dict[str, str]]:
        """Card or slice -> the task or container that holds it; None while that is not known."""
        return users(self._claims, self._strangers)

    def orphans(self) -> Told:
        return self._orphans.told()

    def undelivered(self) -> int:
        return self._parts.journal.undelivered()

    def holds_anything(self) -> bool:
        """Whether claims, containers or undelivered results depend on this agent's identity."""
        parts = self._parts
        drivers = {name: engine.driver for name, engine in parts.drivers.items()}
        return bool(self._claims.all()) or work_of(parts.identity.node_id, parts.journal, drivers) is not None

    def disown(self) -> None:
        """This agent is a new instance: what it took for its own is another's, who lives. No step is taken for it
        any more, and containers stay as they are."""
        self._intents.forget()
        count = self._parts.journal.set_aside()
        for held in self._claims.all():
            self._claims.drop(held.key)
            held.cancel_pull()
        if count:
            log.warning("%d claim(s) in the journal belong to the instance that this folder was copied from", count)

    # Loops

    def _reconcile(self) -> None:
        first = [engine for engine in self._parts.drivers.values() if engine.last.error == NOT_ASKED]
        self._rounds.reconcile()
        for engine in first:
            self._after_look(engine)

    def _poll(self, engine: Engine) -> None:
        self._rounds.poll(engine)
        self._after_look(engine)

    def _after_look(self, engine: Engine) -> None:
        """What else is looked at when an engine was listed."""
        if engine.answers:
            self._strangers.look(engine)
            if engine.driver.images is not None:
                self._refresh_images(engine.driver.images)
            self._taking.go_on()
        elif engine.driver.images is not None:
            self._images_at = None  # what answers next may be another engine

    def _refresh_images(self, images: DockerImages) -> None:
        now = self._parts.clock()
        if self._images_at is not None and now - self._images_at < IMAGES_EVERY_S:
            return
        try:
            self._images = images.list()
            self._images_at = now
        except DriverError as error:
            self._images = None
            log.warning("images cannot be listed: %s", error)

    def _on_event(self, uid: str) -> None:
        for held in self._claims.of_uid(uid):
            if held.record.stage in KEPT_STAGES:
                self._way.advance(held)
