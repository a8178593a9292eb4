"""The two rounds over all containers: a quick look every few seconds, and the reconciliation of engine, journal
and server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.driver import (
    LABEL_CONTROL_PLANE,
    LABEL_INSTANCE,
    LABEL_TASK,
    Seen,
)
from runtime.agent.drivers.errors import DriverError
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.tasks.claim import new_claim_token
from runtime.agent.tasks.claiming import without_secrets
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.listing import LastListing, Listing, Trust, is_own
from runtime.agent.tasks.reconcile import BOX_OF_STATE, Box, Decision, Server, Situation, decide, needs_server
from runtime.agent.tasks.records import STARTED_STAGES, ClaimRecord, Key, Stage
from runtime.agent.tasks.zombies import SETTLED_S, read_task
from runtime.protocol.tasks import Reclaim, Task, TaskSpec

if TYPE_CHECKING:
    from runtime.agent.tasks.intents import Intents
    from runtime.agent.tasks.outages import Outages
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.agent.tasks.way import Way

log = logging.getLogger(__name__)

FACT_ENGINE = "engine_id"
ENGINE_EVERY_S = 60.0
QUESTIONS_A_ROUND = 50
_NUDGED = (Decision.ADOPT, Decision.CONCLUDE, Decision.START, Decision.RESUME, Decision.ASK_AGAIN,
           Decision.REPORT, Decision.REMOVE, Decision.FORGET)  # fmt: skip


class Rounds:
    """Looks at all containers in one list call and puts what changed to the workers."""

    def __init__(
        self, parts: Parts, claims: Claims, way: Way, intents: Intents, outages: Outages, last: LastListing
    ) -> None:
        self._parts = parts
        self._claims = claims
        self._way = way
        self._intents = intents
        self._outages = outages
        self._last = last
        self._engine_at: Optional[float] = None
        self._unaccounted: frozenset[Key] = frozenset()
        self._trust = Trust(parts.journal.fact(FACT_ENGINE))

    def poll(self) -> None:
        """One listing; a claim whose container does not run (any more) is looked at."""
        held_before = {held.record.container_id: held for held in self._claims.all()}
        listing = self.look()
        if listing is None:
            return
        for seen in listing.containers:
            held = held_before.get(seen.id)
            if held is None or held.record.stage not in STARTED_STAGES:
                continue
            held.alive = seen.state in ("running", "paused")
            if not held.alive or held.want is not None:
                self._way.advance(held)

    def look(self) -> Optional[Listing]:
        """List, and note what it says of the engine; None when it cannot be listed, which says nothing at all."""
        parts = self._parts
        known = sum(1 for held in self._claims.all() if held.record.stage in STARTED_STAGES)
        try:
            containers = parts.driver.list_own()
            self._refresh_engine()
        except DriverError as error:
            if self._last.error != str(error):
                log.warning("containers cannot be listed: %s", error)
            self._engine_at = None
            self._last.bad(str(error))
            self._outages.gone()
            return None
        self._outages.alive()
        engine = parts.engine
        complete = self._trust.judge(engine.id, len(containers), known)
        if complete and engine.id is not None and engine.id != parts.journal.fact(FACT_ENGINE):
            parts.journal.save_fact(FACT_ENGINE, engine.id)
        listing = Listing(parts.clock(), tuple(containers), complete)
        self._last.good(listing, engine)
        return listing

    def reconcile(self) -> None:
        """Bring engine, journal and server together; in doubt nothing happens."""
        claims = {held.key: held for held in self._claims.all()}
        listing = self.look()
        if listing is None:
            self._nudge_without_engine(claims)
            return
        boxes: dict[Key, Seen] = {}
        for seen in listing.containers:
            key = Key(seen.uid, seen.attempt)
            held = claims.get(key)
            if held is None or held.record.container_id in (None, seen.id):
                boxes[key] = seen
        questions = QUESTIONS_A_ROUND
        for key in {*claims, *boxes}:
            held, box = claims.get(key), boxes.get(key)
            situation = self._situation(held, box)
            if box is None and held is not None and held.record.stage in STARTED_STAGES and not listing.complete:
                continue
            task: Optional[Task] = None
            if self._must_ask(situation, key) and questions > 0:
                questions -= 1
                try:
                    situation, task = self._asked(situation, key, held, box)
                except Unavailable as error:
                    questions = 0  # one that does not answer is not asked fifty times, half a minute each
                    log.debug("the server's view is unknown: %s", error)
            try:
                self._apply(decide(situation), held, box, task)
            except Unavailable as error:
                questions = 0
                log.debug("container %s stays as it is: %s", box.id[:12] if box else "", error)
        if listing.complete and questions > 0:
            self._own_up(set(boxes))
        self._parts.journal.prune(self._parts.settings.outbox_keep_days)

    def _situation(self, held: Optional[Held], box: Optional[Seen]) -> Situation:
        parts = self._parts
        own, settled = True, True
        if box is not None:
            known = held.record.control_plane_id if held is not None else parts.client.control_plane_id
            own = is_own(box, known, parts.identity.node_id)
            settled = parts.wall() - box.created_at >= SETTLED_S
        server = Server.UNKNOWN
        if held is not None and self._intents.named(held.key):
            server = Server.OURS
        state = Box.NONE if box is None else BOX_OF_STATE.get(box.state, Box.GOING)
        return Situation(state, held.record.stage if held is not None else None, server, own, settled)

    @staticmethod
    def _must_ask(situation: Situation, key: Key) -> bool:
        """What runs and is in the journal is asked about by the intents; here only what is missing somewhere."""
        missing = situation.stage is None or (situation.box is Box.NONE and situation.stage in STARTED_STAGES)
        return missing and needs_server(situation) and bool(key.uid)

    def _asked(
        self, situation: Situation, key: Key, held: Optional[Held], box: Optional[Seen]
    ) -> tuple[Situation, Optional[Task]]:
        parts = self._parts
        task_id = held.record.task_id if held is not None else box.labels.get(LABEL_TASK, "") if box else ""
        token = held.record.claim_token if held is not None else box.claim_token if box else ""
        try:
            task = parts.client.task(task_id, token or None)
        except Refused as refused:
            log.debug("task %s: the server's view is unknown: %s", task_id, refused)
            return situation, None
        server = read_task(task, key, parts.identity.node_id)
        return Situation(situation.box, situation.stage, server, situation.own, situation.settled), task

    def _apply(self, decision: Decision, held: Optional[Held], box: Optional[Seen], task: Optional[Task]) -> None:
        if held is not None:
            if decision in _NUDGED:
                if held.record.stage is Stage.CREATED and box is None:
                    self._parts.write(held, stage=Stage.CLAIMED, container_id=None)
                self._way.advance(held)
            elif decision is Decision.LOST:
                self._way.lost(held)
            elif decision is Decision.STOP_STALE:
                self._way.abandon(held, "another attempt or end is the valid one")
        elif box is not None and decision in (Decision.RECLAIM, Decision.STOP_STALE):
            self._take_over(box, task, stale=decision is Decision.STOP_STALE)

    def _take_over(self, box: Seen, task: Optional[Task], stale: bool) -> None:
        """A container that the journal does not know: its labels say who it is."""
        parts, labels = self._parts, box.labels
        if not stale and labels.get(LABEL_INSTANCE) != parts.identity.instance_id and not self._reclaimed(box):
            return
        # What was not started yet goes through all checks again: who made it has forgotten what they had found.
        unstarted = box.state == "created" and not stale
        spec = task.spec if task is not None and task.spec is not None else TaskSpec(name=labels[LABEL_TASK])
        record = ClaimRecord(
            key=Key(box.uid, box.attempt),
            task_id=labels[LABEL_TASK],
            control_plane_id=labels[LABEL_CONTROL_PLANE],
            claim_token=box.claim_token,
            stage=Stage.CLAIMED if unstarted else Stage.STARTING,
            spec=without_secrets(spec),
            gpus=tuple(task.gpus_assigned or ()) if task is not None else (),
            container_id=None if unstarted else box.id,
        )
        parts.journal.save(record)
        held = Held(record, taken_at=parts.clock(), maybe_made=unstarted)
        if not self._claims.add(held):
            return
        log.info("task %s (attempt %d) is taken over from its container %s", record.task_id, record.key.attempt,
                 box.id[:12])  # fmt: skip
        if stale:
            self._way.abandon(held, "the server says that it is over")
        else:
            self._way.advance(held)

    def _own_up(self, boxes: set[Key]) -> None:
        """Journal and container of a running task are both gone: say so, after a second round said the same.

        The claim is taken back under a new token; whether its program ever ran, nobody knows.
        """
        missing = {key: (intent, by) for key, intent, by in self._intents.unaccounted() if key not in boxes}
        doubted, self._unaccounted = self._unaccounted, frozenset(missing)
        for key in doubted & self._unaccounted:
            intent, control_plane = missing[key]
            record = ClaimRecord(
                key, intent.task_id, control_plane, new_claim_token(), Stage.CLAIMED, TaskSpec(name=intent.task_id)
            )
            identity = self._parts.identity
            claim = Reclaim(identity.node_id, identity.instance_id, key.attempt, record.claim_token)
            try:
                self._parts.client.reclaim(intent.task_id, claim)
            except Unavailable:
                return  # the next round says it
            except Refused as refused:
                log.warning("task %s runs here, says the server; nothing of it is known: %s", intent.task_id, refused)
                continue
            self._parts.journal.save(record)
            held = Held(record, taken_at=self._parts.clock())
            if self._claims.add(held):
                self._way.unknown(held)

    def _reclaimed(self, box: Seen) -> bool:
        identity = self._parts.identity
        claim = Reclaim(identity.node_id, identity.instance_id, box.attempt, box.claim_token)
        try:
            self._parts.client.reclaim(box.labels[LABEL_TASK], claim)
        except Refused as refused:
            log.warning("container %s of an earlier instance stays untouched: %s", box.id[:12], refused)
            return False
        return True

    def _nudge_without_engine(self, claims: dict[Key, Held]) -> None:
        """Reports and open claims need no engine."""
        for held in claims.values():
            if held.record.stage in (Stage.CLAIMING, Stage.CONCLUDED):
                self._way.advance(held)

    def _refresh_engine(self) -> None:
        now = self._parts.clock()
        if self._engine_at is None or now - self._engine_at >= ENGINE_EVERY_S:
            self._parts.engine = self._parts.driver.engine()
            self._engine_at = now
