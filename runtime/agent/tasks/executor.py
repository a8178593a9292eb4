"""The executor: all parts of running tasks on this node, built and stopped in one place."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.drivers.driver import LABEL_NODE
from runtime.agent.drivers.errors import DriverError
from runtime.agent.loop import Backoff, Loop
from runtime.agent.tasks.boot import boot_mark
from runtime.agent.tasks.claim import new_claim_token
from runtime.agent.tasks.claiming import without_secrets
from runtime.agent.tasks.events import EventThread
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.intents import Intents
from runtime.agent.tasks.listing import NOT_ASKED, LastListing, foreign_entry, is_own
from runtime.agent.tasks.logs import LogShipper
from runtime.agent.tasks.outages import Outages
from runtime.agent.tasks.parts import Claims, Parts
from runtime.agent.tasks.pool import Pool
from runtime.agent.tasks.records import ClaimRecord, Key, Stage
from runtime.agent.tasks.rounds import FACT_ENGINE, Rounds
from runtime.agent.tasks.steps import Step, Trace, no_trace
from runtime.agent.tasks.timers import Timers
from runtime.agent.tasks.way import Way
from runtime.agent.tasks.zombies import ServerWord
from runtime.protocol.heartbeat import DockerState, Foreign, HeartbeatAnswer, Slots, TaskHealth
from runtime.protocol.states import Driver as DriverName
from runtime.protocol.states import Phase
from runtime.protocol.tasks import Task, TaskSpec

if TYPE_CHECKING:
    from runtime.agent.drivers.driver import Driver, Seen
    from runtime.agent.hardware.inventory import GpuSnapshot
    from runtime.agent.link.client import ServerClient
    from runtime.agent.link.identity import Identity
    from runtime.agent.settings import AgentSettings
    from runtime.agent.tasks.journal import Journal

log = logging.getLogger(__name__)

TAKE_AT_ONCE = 20
REPORTERS = 4
PROBERS = 4
IMAGES_EVERY_S = 60.0
FRESH_POLLS = 3
LOOKS_A_POLL = 20
HOLDING = ("running", "paused", "restarting")
"""States in which a container holds its cards."""


class Executor:
    """Runs the tasks that the server gives this node. Made without side effects; ``start`` begins.

    ``on_engine_known()`` is called once, when Docker has answered or failed for the first time.
    """

    def __init__(
        self,
        settings: AgentSettings,
        client: ServerClient,
        driver: Driver,
        journal: Journal,
        identity: Identity,
        snapshot: Callable[[], GpuSnapshot],
        *,
        on_engine_known: Callable[[], None] = lambda: None,
        trace: Trace = no_trace,
    ) -> None:
        workers = settings.workers
        self._parts = Parts(
            settings=settings,
            client=client,
            driver=driver,
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
        )
        self._claims = Claims()
        self._outages = Outages()
        word = ServerWord()
        self._way = Way(self._parts, self._claims, self._outages, word)
        self._intents = Intents(self._parts, self._claims, self._way, word)
        self._last = LastListing(FRESH_POLLS * settings.poll_interval_s + 1.0, on_engine_known)
        self._rounds = Rounds(self._parts, self._claims, self._way, self._intents, self._outages, self._last)
        self._logs = LogShipper(self._parts, self._claims)
        self._events = EventThread(self._parts, self._outages, self._on_event)
        self._stranger_cards: dict[str, tuple[str, ...]] = {}
        self._images: Optional[list[str]] = None
        self._images_at: Optional[float] = None
        self._wanted = threading.Event()
        poll = settings.poll_interval_s
        self._take_loop = Loop("tasks", poll, self._take, backoff=Backoff(1.0, 20.0))
        self._poll_loop = Loop("containers", poll, self._poll, backoff=None)
        self._reconcile_loop = Loop("reconcile", settings.reconcile_interval_s, self._rounds.reconcile)

    # Life

    def start(self) -> None:
        """Take over what the journal knows (no server needed), then look, reconcile and take tasks."""
        self._parts.timers.start()
        for record in self._parts.journal.claims():
            held = Held(record, taken_at=self._parts.clock(), maybe_made=True)
            if record.stage in (Stage.STARTING, Stage.RUNNING):
                held.phase = Phase.RUNNING
            self._claims.add(held)
            self._way.advance(held)
        self._events.start()
        for loop in self.loops():
            loop.start()

    def stop(self, deadline_s: float) -> None:
        """Take no more steps; containers are left running on purpose."""
        self._parts.stop_event.set()
        for loop in self.loops():
            loop.stop()
        self._events.stop()
        self._logs.stop()
        self._parts.timers.stop()
        for pool in (self._parts.steps, self._parts.pulls, self._parts.reports, self._parts.probes):
            pool.stop(0.0)
        end = self._parts.clock() + deadline_s
        for pool in (self._parts.steps, self._parts.reports):
            pool.stop(max(0.0, end - self._parts.clock()))

    def loops(self) -> list[Loop]:
        return [self._take_loop, self._poll_loop, self._reconcile_loop]

    # What the heartbeat's answer brings

    def wake(self) -> None:
        """There may be tasks to take."""
        self._wanted.set()
        self._take_loop.wake()

    def on_answer(self, answer: HeartbeatAnswer) -> None:
        """Intents and log requests of one good beat; returns at once."""
        self._intents.on_answer(answer)
        self._logs.follow(answer.follow)

    # What the heartbeat tells

    def task_health(self) -> list[TaskHealth]:
        """One entry per claim held."""
        return [held.health() for held in self._claims.all() if held.record.stage is not Stage.CLAIMING]

    def live_task_ids(self) -> Optional[list[str]]:
        """Tasks of ours whose container was seen running just now; None when Docker cannot be listed."""
        listing = self._last.now()
        if listing is None:
            return None
        running = {seen.id for seen in listing.containers if seen.state in ("running", "paused")}
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
        engine, error = self._last.engine, self._last.error
        if error == NOT_ASKED:
            return None
        if error is not None or engine is None:
            return DockerState(available=False, error=error)
        return DockerState(True, engine.version, list(engine.runtimes), engine.id)

    def images(self) -> Optional[list[str]]:
        """References on the engine, None when it could not be asked."""
        return self._images

    def foreign(self) -> Optional[list[Foreign]]:
        """Containers with our kind of labels that are not this control plane's; None when nobody knows, be it only
        which cards one of them holds."""
        strangers, cards = self._strangers(), self._stranger_cards
        if strangers is None or any(seen.state in HOLDING and seen.id not in cards for seen in strangers):
            return None
        return [foreign_entry(seen, cards.get(seen.id, ())) for seen in strangers]

    def _strangers(self) -> Optional[list[Seen]]:
        listing = self._last.now()
        control_plane, node = self._parts.client.control_plane_id, self._parts.identity.node_id
        if listing is None or control_plane is None:
            return None
        return [seen for seen in listing.containers if not is_own(seen, control_plane, node)]

    def undelivered(self) -> int:
        return self._parts.journal.undelivered()

    def holds_anything(self) -> bool:
        """Whether claims, containers or undelivered results depend on this agent's identity.

        Asks the engine now: the last listing may be none yet. One that does not answer may hold anything, unless
        none was ever seen here.
        """
        parts = self._parts
        if self._claims.all() or self.undelivered() > 0:
            return True
        try:
            return any(seen.labels.get(LABEL_NODE) == parts.identity.node_id for seen in parts.driver.list_own())
        except DriverError:
            return parts.journal.fact(FACT_ENGINE) is not None

    # Loops

    def _take(self) -> None:
        """Take scheduled tasks, when somebody said that there are some and there is room."""
        if not self._wanted.is_set():
            return
        room = min(TAKE_AT_ONCE, self._parts.settings.max_tasks - self._claims.used())
        docker = self._last.error is None
        if room <= 0 or not (docker or self._parts.settings.process_driver):
            return
        self._wanted.clear()
        try:
            tasks = self._parts.client.scheduled_tasks(room)
        except Exception:
            self._wanted.set()
            raise
        for task in tasks:
            if docker or task.driver is DriverName.PROCESS:
                self._claim(task)
        if len(tasks) == TAKE_AT_ONCE:
            self.wake()

    def _claim(self, task: Task) -> None:
        parts = self._parts
        key = Key(task.uid, task.attempt)
        control_plane = parts.client.control_plane_id
        if self._claims.of_uid(task.uid) or control_plane is None:
            return  # held already, or an earlier attempt is not gone from here yet
        record = ClaimRecord(
            key=key,
            task_id=task.id,
            control_plane_id=control_plane,
            claim_token=new_claim_token(),
            stage=Stage.CLAIMING,
            spec=without_secrets(task.spec or TaskSpec(name=task.name or task.id)),
            gpus=tuple(task.gpus_assigned or ()),
            driver=task.driver or DriverName.DOCKER,
        )
        held = Held(record, taken_at=parts.clock())
        parts.step(held, Step.JOURNAL_CLAIM)
        parts.journal.save(record)
        if self._claims.add(held):
            self._way.advance(held)

    def _poll(self) -> None:
        away = self._last.error is not None
        self._rounds.poll()
        if self._last.error is None:
            self._look_at_strangers()
            self._refresh_images()
            if away or self._wanted.is_set():
                self._take_loop.wake()

    def _look_at_strangers(self) -> None:
        """Which cards the others hold: each of their running containers is inspected once."""
        known, found, looks = self._stranger_cards, {}, 0
        for seen in self._strangers() or ():
            if seen.state not in HOLDING:
                continue
            cards = known.get(seen.id)
            if cards is None and looks < LOOKS_A_POLL:
                looks += 1
                try:
                    cards = self._parts.driver.inspect(seen.id).cards
                except DriverError as error:
                    log.debug("container %s of another control plane: %s", seen.id[:12], error)
            if cards is not None:
                found[seen.id] = cards
        self._stranger_cards = found

    def _refresh_images(self) -> None:
        now = self._parts.clock()
        if self._images_at is not None and now - self._images_at < IMAGES_EVERY_S:
            return
        try:
            self._images = self._parts.driver.images.list()
            self._images_at = now
        except DriverError as error:
            self._images = None
            log.warning("images cannot be listed: %s", error)

    def _on_event(self, uid: str) -> None:
        for held in self._claims.of_uid(uid):
            if held.record.stage in (Stage.STARTING, Stage.RUNNING):
                self._way.advance(held)
