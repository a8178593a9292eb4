"""Taking up what the journal has lost: from a container's labels, or from the server's word alone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional

from runtime.agent.drivers.driver import LABEL_CONTROL_PLANE, LABEL_DEADLINE, LABEL_INSTANCE, LABEL_TASK, Seen
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.tasks.claim import new_claim_token
from runtime.agent.tasks.confidential import without_secrets
from runtime.agent.tasks.held import Held
from runtime.agent.tasks.reconcile import Decision
from runtime.agent.tasks.records import ClaimRecord, Key, Stage, is_partial
from runtime.protocol.states import Status
from runtime.protocol.tasks import Reclaim, Task, TaskSpec
from runtime.protocol.times import from_wire

if TYPE_CHECKING:
    from runtime.agent.tasks.engines import Engine
    from runtime.agent.tasks.intents import Intents
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.agent.tasks.way import Way

log = logging.getLogger(__name__)


class Takeover:
    """Works in the threads of the rounds. Raises Unavailable when the server had to be asked and did not answer."""

    def __init__(self, parts: Parts, claims: Claims, way: Way, intents: Intents) -> None:
        self._parts = parts
        self._claims = claims
        self._way = way
        self._intents = intents
        self._unaccounted: frozenset[Key] = frozenset()

    def take(
        self, engine: Engine, box: Seen, task: Optional[Task], decision: Decision, over: Optional[str] = None
    ) -> None:
        """A container that the journal does not know: its labels say who it is. ``decision``: reclaim, stop_stale or
        remove. ``over``: what becomes of its conclusion when it is given up."""
        parts, labels = self._parts, box.labels
        if decision is Decision.RECLAIM and parts.journal.letter(Key(box.uid, box.attempt)) is not None:
            return  # how it ended is known: that is told again, and never drawn anew
        ours = labels.get(LABEL_INSTANCE) == parts.identity.instance_id
        if decision is Decision.RECLAIM and not ours and not self._reclaimed(box):
            return
        stage = stage_of(box, task, decision)
        record = ClaimRecord(
            key=Key(box.uid, box.attempt),
            task_id=labels[LABEL_TASK],
            control_plane_id=labels[LABEL_CONTROL_PLANE],
            claim_token=box.claim_token,
            stage=stage,
            spec=spec_of(box, task),
            gpus=tuple(task.gpus_assigned or ()) if task is not None else (),
            driver=engine.name,
            container_id=None if stage is Stage.CLAIMED else box.id,
        )
        held = self._hold(record)
        if held is None:
            return
        log.info("task %s (attempt %d) is taken over from its container %s", record.task_id, record.key.attempt,
                 box.id[:12])  # fmt: skip
        if decision is Decision.STOP_STALE:
            held.over = over or held.over
            self._way.abandon(held, "the server says that it is over")
        else:
            self._way.advance(held)

    def fill(self, held: Held, task: Task) -> None:
        """What the labels do not say of a task that was taken over: its specification and its cards."""
        if task.spec is not None and is_partial(held.record.spec):
            self._way.fill(held, without_secrets(task.spec), tuple(task.gpus_assigned or ()))

    def own_up(self, boxes: set[Key]) -> None:
        """Journal and container of a task that was here are both gone: say so, after a second round said the same.

        The claim is taken back under a new token; whether its program ever ran, nobody knows, so it is held as one
        that may have. ``boxes``: every container that there is.
        """
        missing = {key: (intent, by) for key, intent, by in self._intents.unaccounted() if key not in boxes}
        doubted, self._unaccounted = self._unaccounted, frozenset(missing)
        for key in doubted & self._unaccounted:
            intent, control_plane = missing[key]
            stage = Stage.SLEEPING if intent.status == Status.SLEEPING.value else Stage.STARTING
            spec = TaskSpec(name=intent.task_id)
            record = ClaimRecord(key, intent.task_id, control_plane, new_claim_token(), stage, spec, asked_mark="")
            identity = self._parts.identity
            claim = Reclaim(identity.node_id, identity.instance_id, key.attempt, record.claim_token)
            try:
                self._parts.client.reclaim(intent.task_id, claim)
            except Unavailable:
                return  # the next round says it
            except Refused as refused:
                log.warning("task %s runs here, says the server; nothing of it is known: %s", intent.task_id, refused)
                continue
            held = self._hold(record)
            if held is not None:
                self._way.unknown(held)

    def _hold(self, record: ClaimRecord) -> Optional[Held]:
        """Journalled and held; None when somebody else took it meanwhile."""
        if self._claims.get(record.key) is not None:
            return None
        self._parts.journal.save(record)
        held = Held(record, taken_at=self._parts.clock(), maybe_made=record.stage is Stage.CLAIMED)
        return held if self._claims.add(held) else None

    def _reclaimed(self, box: Seen) -> bool:
        identity = self._parts.identity
        claim = Reclaim(identity.node_id, identity.instance_id, box.attempt, box.claim_token)
        try:
            self._parts.client.reclaim(box.labels[LABEL_TASK], claim)
        except Refused as refused:
            log.warning("container %s of an earlier instance stays untouched: %s", box.id[:12], refused)
            return False
        return True


def stage_of(box: Seen, task: Optional[Task], decision: Decision) -> Stage:
    """How far the claim of a container that was found had come, at least. Pure.

    One that was not started yet goes through all checks again: who made it has forgotten what they had found.
    """
    if decision is Decision.REMOVE:
        return Stage.DONE
    if decision is Decision.STOP_STALE:
        return Stage.STARTING
    if box.state == "created":
        return Stage.CLAIMED
    asleep = task is not None and task.status is Status.SLEEPING
    # A container that its own agent stopped looks like one that ended: only the server still knows that it sleeps.
    return Stage.SLEEPING if asleep and box.state == "exited" else Stage.STARTING


def spec_of(box: Seen, task: Optional[Task]) -> TaskSpec:
    """What the server says, else what the labels tell: the name, and how long it may run. Pure."""
    if task is not None and task.spec is not None:
        return without_secrets(task.spec)
    deadline = box.labels.get(LABEL_DEADLINE)
    try:
        limit = from_wire(deadline).timestamp() - box.created_at if deadline else None
    except ValueError:
        limit = None
    return TaskSpec(name=box.labels[LABEL_TASK], timeout_s=max(limit, 1.0) if limit is not None else None)
