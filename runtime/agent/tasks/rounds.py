"""The rounds over all containers: a quick look every few seconds, the reconciliation of engine, journal and server,
and after each good beat a look at containers that no claim explains."""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.driver import LABEL_CONTROL_PLANE, LABEL_INSTANCE, LABEL_TASK, Seen
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.listing import Ages, Listing, is_own
from runtime.agent.tasks.reconcile import BOX_OF_STATE, Box, Decision, Row, Server, Situation, needs_server, row_of
from runtime.agent.tasks.records import KEPT_STAGES, ClaimRecord, Key, Stage, is_partial
from runtime.agent.tasks.report import OVER_DELETED, over_as
from runtime.agent.tasks.takeover import Takeover
from runtime.agent.tasks.zombies import SETTLED_S, Questions, read_task
from runtime.protocol.tasks import Task

if TYPE_CHECKING:
    from runtime.agent.tasks.engines import Engine
    from runtime.agent.tasks.intents import Intents
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.agent.tasks.way import Way
    from runtime.agent.tasks.zombies import ServerWord
    from runtime.protocol.states import Driver as DriverName

log = logging.getLogger(__name__)

QUESTIONS_A_ROUND = 50
QUESTIONS_A_BEAT = 10
_NUDGED = (Decision.CONCLUDE, Decision.START, Decision.RESUME, Decision.ASK_AGAIN, Decision.REPORT, Decision.REMOVE,
           Decision.FORGET)  # fmt: skip
_TAKEN_OVER = (Decision.RECLAIM, Decision.STOP_STALE, Decision.REMOVE)


class Rounds:
    """Looks at all containers of an engine in one list call and puts what changed to the workers."""

    def __init__(self, parts: Parts, claims: Claims, way: Way, intents: Intents, word: ServerWord) -> None:
        self._parts = parts
        self._claims = claims
        self._way = way
        self._intents = intents
        self._word = word
        self._takeover = Takeover(parts, claims, way, intents)
        self._ages = Ages(parts.clock, parts.wall)
        self._questions = Questions(parts.clock)
        self._judging = threading.Lock()
        self._unclaimed: dict[DriverName, list[Seen]] = {}

    def poll(self, engine: Engine) -> None:
        """One listing; a claim whose container does not run (any more) is looked at."""
        held_before = {held.record.container_id: held for held in self._of(engine)}
        listing = self.look(engine)
        if listing is None:
            return
        for seen in listing.containers:
            held = held_before.get(seen.id)
            if held is None or held.record.stage not in KEPT_STAGES:
                continue
            held.alive = seen.state in ("running", "paused")
            sleeps = held.record.stage is Stage.SLEEPING
            if held.alive is sleeps or held.want is not None:
                self._way.advance(held)

    def look(self, engine: Engine) -> Optional[Listing]:
        """List; None when it cannot be listed, which says nothing at all."""
        before = {held.key for held in self._claims.all()}
        listing = engine.look(sum(1 for held in self._of(engine) if held.record.stage in KEPT_STAGES))
        if listing is None:
            return None
        self._ages.note(engine.name.value, listing.containers)
        # One whose claim came, or was over, while the list was made has a claim.
        self._unclaimed[engine.name] = [
            box
            for box in listing.containers
            if (key := Key(box.uid, box.attempt)) not in before and self._claims.get(key) is None
        ]
        return listing

    def reconcile(self) -> None:
        """Bring engines, journal and server together; in doubt nothing happens."""
        if not self._parts.proven:
            return
        with self._judging:
            self._reconcile()
        self._parts.journal.prune(self._parts.settings.outbox_keep_days)

    def judge_unclaimed(self) -> None:
        """After a good beat: what becomes of containers of ours that no claim explains, by the newest lists."""
        if not self._parts.proven or not self._judging.acquire(blocking=False):
            return
        try:
            self._questions.begin(QUESTIONS_A_BEAT)
            for engine in self._parts.drivers.values():
                for box in self._unclaimed.get(engine.name, ()) if engine.last.now() is not None else ():
                    if self._claims.get(Key(box.uid, box.attempt)) is None:
                        self._judge(engine, None, box, whole=False)
        finally:
            self._judging.release()

    def _reconcile(self) -> None:
        self._questions.begin(QUESTIONS_A_ROUND)
        whole = True
        seen: list[Seen] = []
        for engine in self._parts.drivers.values():
            before = {held.key: held.record for held in self._of(engine)}
            listing = self.look(engine)
            if listing is None:
                self._nudge_without_engine(engine)
                whole = whole and engine.absent()
                continue
            seen += listing.containers
            whole = whole and listing.complete
            self._bring_together(engine, listing, before)
        keys = {Key(box.uid, box.attempt) for box in seen}
        if whole and self._questions.left:
            self._takeover.own_up(keys)
        if whole:
            self._way.sweep(keys)

    def _of(self, engine: Engine) -> list[Held]:
        return [held for held in self._claims.all() if held.record.driver is engine.name]

    def _bring_together(self, engine: Engine, listing: Listing, before: dict[Key, ClaimRecord]) -> None:
        """One engine's containers and claims. ``before``: the claims' records when the list was not made yet."""
        boxes: dict[Key, Seen] = {}
        for box in listing.containers:
            key = Key(box.uid, box.attempt)
            held = self._claims.get(key)
            if (held is not None) != (key in before) or (held is not None and not belongs(box, held.record)):
                continue  # taken, or over, while the list was made; or another claim's, which is nobody's to judge
            if key not in boxes or self._is_own(box):
                boxes[key] = box
        for key in {*before, *boxes}:
            held, found = self._claims.get(key), boxes.get(key)
            if key in before and held is None:
                continue
            if found is None and held is not None and held.record is not before[key]:
                continue  # it went on while the list was made: its container may be younger than the list
            self._judge(engine, held, found, whole=listing.complete)

    def _judge(self, engine: Engine, held: Optional[Held], box: Optional[Seen], *, whole: bool) -> None:
        """One attempt: decide, after asking the server where its word counts, and do what follows."""
        situation = self._situation(engine, held, box, whole)
        task: Optional[Task] = None
        try:
            if self._must_ask(situation, held):
                situation, task = self._asked(situation, held, box)
        except Unavailable as error:
            self._questions.stop()  # one that does not answer is not asked fifty times, half a minute each
            log.debug("the server's view is unknown: %s", error)
        row = row_of(situation)
        try:
            self._apply(row, over_of(situation.server, task), engine, held, box, task)
        except Unavailable as error:
            self._questions.stop()
            log.debug("container %s stays as it is: %s", box.id[:12] if box else "", error)

    def _situation(self, engine: Engine, held: Optional[Held], box: Optional[Seen], whole: bool) -> Situation:
        server = Server.OURS if held is not None and self._intents.named(held.key) else Server.UNKNOWN
        state = Box.NONE if box is None else BOX_OF_STATE.get(box.state, Box.GOING)
        if held is not None or box is None:
            return Situation(state, held.record.stage if held is not None else None, server, whole=whole)
        return Situation(
            state,
            None,
            server,
            own=self._is_own(box),
            same_instance=self._is_instances(box),
            settled=self._ages.of(engine.name.value, box) >= SETTLED_S,
            whole=whole,
        )

    def _is_own(self, box: Seen) -> bool:
        """Before the server was heard for the first time only this very instance's count."""
        known, node = self._parts.client.control_plane_id, self._parts.identity.node_id
        if known is None:
            return is_own(box, box.labels.get(LABEL_CONTROL_PLANE), node) and self._is_instances(box)
        return is_own(box, known, node)

    def _is_instances(self, box: Seen) -> bool:
        return box.labels.get(LABEL_INSTANCE) == self._parts.identity.instance_id

    def _must_ask(self, situation: Situation, held: Optional[Held]) -> bool:
        """What runs and is in the journal is asked about by the intents; here only what is missing somewhere."""
        if held is None and self._parts.client.control_plane_id is None:
            return False  # the first beat is on its way: what runs is watched before, and does not wait for a server
        if held is not None and is_partial(held.record.spec) and held.record.stage in KEPT_STAGES:
            return True
        missing = situation.stage is None or (situation.box is Box.NONE and situation.stage in KEPT_STAGES)
        return missing and needs_server(situation)

    def _asked(
        self, situation: Situation, held: Optional[Held], box: Optional[Seen]
    ) -> tuple[Situation, Optional[Task]]:
        """The situation with the server's word in it, where it may be asked now. Raises Unavailable."""
        parts = self._parts
        if held is not None:
            key, task_id, token = held.key, held.record.task_id, held.record.claim_token
            control_plane = held.record.control_plane_id
        elif box is not None:
            key, task_id, token = Key(box.uid, box.attempt), box.labels.get(LABEL_TASK, ""), box.claim_token
            control_plane = box.labels.get(LABEL_CONTROL_PLANE, "")
        else:
            return situation, None
        if not (key.uid and task_id) or parts.client.control_plane_id not in (None, control_plane):
            return situation, None
        if not self._questions.may(key):
            return situation, None
        try:
            task = parts.client.task(task_id, token or None)
        except Refused as refused:
            log.debug("task %s: the server's view is unknown: %s", task_id, refused)
            gone = self._word.says_deleted(key, control_plane, refused.problem, parts.clock())
            self._questions.answered(key, counting=refused.code == "task_not_found" and not gone)
            return (dataclasses.replace(situation, server=Server.DELETED) if gone else situation), None
        self._word.found(key)
        self._questions.answered(key)
        if held is not None:
            self._takeover.fill(held, task)
        server = read_task(task, key, parts.identity.node_id, parts.identity.former_node_ids)
        return dataclasses.replace(situation, server=server), task

    def _apply(
        self,
        row: Row,
        over: Optional[str],
        engine: Engine,
        held: Optional[Held],
        box: Optional[Seen],
        task: Optional[Task],
    ) -> None:
        """``over``: what becomes of the conclusion of an attempt that is given up."""
        decision = row.decision
        if held is None:
            if box is not None and decision in _TAKEN_OVER:
                self._takeover.take(engine, box, task, decision, over)
        elif decision is Decision.LOST:
            self._way.lost(held)
        elif decision is Decision.STOP_STALE:
            held.over = over or held.over
            self._way.abandon(held, f"it is {row.why.replace('_', ' ')}")
        elif decision is Decision.ADOPT and box is not None:
            self._way.adopt(held, box.id)
        elif decision is Decision.CONCLUDE and box is not None:
            self._way.caught_up(held, box.id)
        elif decision in _NUDGED:
            if held.record.stage is Stage.CREATED and box is None:
                self._parts.write(held, stage=Stage.CLAIMED, container_id=None)
            if decision is Decision.FORGET:
                held.remove_at = 0.0  # it went by itself: nothing is waited for any more
            self._way.advance(held)

    def _nudge_without_engine(self, engine: Engine) -> None:
        """Reports and open claims need no engine."""
        for held in self._of(engine):
            if held.record.stage in (Stage.CLAIMING, Stage.CONCLUDED):
                self._way.advance(held)


def over_of(server: Server, task: Optional[Task]) -> Optional[str]:
    """What becomes of a conclusion that nobody waits for, by what the server said. Pure."""
    if server is Server.DELETED:
        return OVER_DELETED
    return over_as(task.status) if server is Server.ENDED and task is not None else None


def belongs(box: Seen, record: ClaimRecord) -> bool:
    """Whether this is the container of that claim: the one that was written down, else one that carries its token."""
    if record.container_id is not None:
        return record.container_id == box.id
    return box.claim_token == record.claim_token
