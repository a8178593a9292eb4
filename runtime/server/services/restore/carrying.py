"""Carrying an acceptance out: rows, attempts, cards and numbers, all in the one transaction of whoever asks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runtime.protocol.codec import WireError, decode
from runtime.protocol.nodes import EventKind
from runtime.protocol.reasons import Reason
from runtime.protocol.states import TERMINAL, Desired, Driver, OrphanState, Status
from runtime.protocol.tasks import TaskSpec, TaskWarning
from runtime.protocol.times import from_wire, to_wire
from runtime.server.services.events import emit
from runtime.server.services.restore import cards, plan
from runtime.server.services.restore.facts import Facts, Holder, Told
from runtime.server.services.restore.plan import Decision, Plan, Verdict
from runtime.server.services.tasks import ends, rows
from runtime.server.services.tasks.check import starts_allowed
from runtime.server.services.tasks.confidential import public_part
from runtime.server.services.tasks.rows import RESTORED, Row
from runtime.server.store.tables import attempts, control_plane, orphans, tasks, witnesses
from runtime.server.store.transaction import Tx

log = logging.getLogger(__name__)

ACTOR = "operator:accept-restore"


@dataclass
class Result:
    """What was found, what was decided, and what was done. ``done`` False: nothing, since it was not to be, or
    ``refused`` says why."""

    facts: Facts
    plan: Plan
    done: bool = False
    refused: str | None = None
    adopted: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    doubled_cards: dict[str, list[str]] = field(default_factory=dict)


class Acceptance:
    """One acceptance, inside its transaction."""

    def __init__(
        self, tx: Tx, result: Result, choices: Mapping[str, str], default: str, now: datetime, mps_max: int
    ) -> None:
        self._tx = tx
        self._result = result
        self._choices = choices
        self._default = default
        self._now = now
        self._mps_max = mps_max
        self._told = {word.node_id: word for word in result.facts.nodes if word.told}
        self._live = {
            told.holder: told.node_id
            for told in result.facts.orphans
            if told.state in (OrphanState.RUNNING, OrphanState.CLAIMED)
        }
        self._over = {
            told.holder
            for told in result.facts.orphans
            if told.state in (OrphanState.CONCLUDED, OrphanState.SUPERSEDED, OrphanState.SLEEPING)
        }

    def carry_out(self) -> None:
        decided = self._result.plan
        for decision in decided.of(Verdict.RELEASE):
            self._release(decision.told)
        for known in decided.requeue:
            row = rows.must_find_locked(self._tx, known.task_id)
            self._back(row, "its node does not have it")
        # Who is over or asleep holds no cards: first, so that they are there for those who run.
        adopted = sorted(decided.of(Verdict.ADOPT), key=lambda one: one.told.holder not in self._over)
        for decision in adopted:
            self._adopt(decision)
        for decision in decided.of(Verdict.BLOCKED):
            cards.reserve(self._tx, decision.told, self._mps_max, self._gone)
        self._raise_numbers()
        self._end_state()

    # -- one orphan --------------------------------------------------------------------------------------------

    def _adopt(self, decision: Decision) -> None:
        told = decision.told
        row = rows.find_locked(self._tx, told.task_id)
        stop = plan.is_to_stop(told, has_row=row is not None, choices=self._choices, default=self._default)
        if row is None:
            self._make(told, stop)
        else:
            self._move(row, told, stop)
        self._attempt(told)
        if told.state in (OrphanState.RUNNING, OrphanState.CLAIMED):
            spec = rows.must_find_locked(self._tx, told.task_id)["spec"]
            doubled = cards.allocate(self._tx, told, spec, self._mps_max, self._gone)
            if doubled:
                log.error("task %s: its cards %s are another live holder's, too", told.task_id, ", ".join(doubled))
                self._result.doubled_cards[told.task_id] = doubled
        else:
            rows.free_cards(self._tx, told.uid, told.attempt)
        self._tx.touch_task(told.uid)
        emit(
            self._tx,
            EventKind.TASK_STATE,
            code=plan.status_of(told).value,
            node_id=told.node_id,
            task_id=told.task_id,
            attempt=told.attempt,
            actor=ACTOR,
            detail=f"adopted from node {told.node_id}, where it is {told.state.value}: {decision.why}",
        )
        (self._result.stopped if stop else self._result.adopted).append(told.task_id)

    def _claim(self, told: Told) -> dict[str, Any]:
        return {
            "status": plan.status_of(told).value,
            "node_id": told.node_id,
            "attempt": told.attempt,
            "claim_token": told.entry.claim_token,
            "claim_instance": told.instance_id,
            "container_id": told.entry.container_id or None,
            "stalled": False,
            "node_lost_since": None,
        }

    def _make(self, told: Told, stop: bool) -> None:
        """A row for a task that the database does not hold. Its secret values are gone: it is never run anew."""
        spec = _spec_of(told)
        moment = _moment_of(told, self._now)
        detail = (
            f"Made anew from what node {told.node_id} told after the database was put back; its env values and "
            "registry login are not known any more, so it is not run again anywhere."
        )
        starts = max(1, min(told.attempt, starts_allowed(spec)))
        values = {
            **self._claim(told),
            "id": told.task_id,
            "uid": told.uid,
            "name": spec.name,
            "kind": spec.kind.value,
            "driver": spec.driver.value,
            "desired": _desired(told, stop).value,
            "starts": starts,
            "max_attempts": starts,
            "priority": spec.priority,
            "created_at": moment,
            "scheduled_at": moment,
            "started_at": moment,
            "labels": spec.labels,
            "warnings": [asdict(TaskWarning(RESTORED, detail))],
            "spec": {**public_part(spec), "on_node_lost": "wait"},
            "secrets": None,
            "body_digest": "",
        }
        self._tx.execute(sa.insert(tasks).values(**values))

    def _move(self, row: Row, told: Told, stop: bool) -> None:
        """The row is of an older time: it is taken to the claim that its node holds."""
        before = (row["uid"], row["attempt"])
        if row["node_id"] is not None and before != told.holder:
            ends.close_attempt(self._tx, row, self._now, error=f"overtaken by attempt {told.attempt}")
            if self._gone(row["node_id"], before):
                rows.free_cards(self._tx, *before)
            else:
                rows.keep_cards_until_gone(self._tx, *before)
        moment = _moment_of(told, self._now)
        desired = _desired(told, stop)
        if Desired(row["desired"]) in (Desired.STOP, Desired.DELETE):
            desired = Desired(row["desired"])
        values = {
            **self._claim(told),
            "desired": desired.value,
            "starts": max(row["starts"], min(told.attempt, row["max_attempts"])),
            "scheduled_at": row["scheduled_at"] if before == told.holder else moment,
            "started_at": row["started_at"] if before == told.holder and row["started_at"] else moment,
        }
        self._tx.execute(sa.update(tasks).where(tasks.c.uid == told.uid).values(**values))

    def _attempt(self, told: Told) -> None:
        key = (attempts.c.uid == told.uid, attempts.c.attempt == told.attempt)
        values = {
            "node_id": told.node_id,
            "instance_id": told.instance_id,
            "claim_token": told.entry.claim_token,
            "container_id": told.entry.container_id or None,
            "ended_at": None,
        }
        moment = _moment_of(told, self._now)
        if self._tx.execute(sa.select(attempts.c.uid).where(*key)).first() is not None:
            self._tx.execute(sa.update(attempts).where(*key).values(**values))
            return
        started = None if told.state is OrphanState.CLAIMED else moment
        self._tx.execute(
            sa.insert(attempts).values(
                uid=told.uid,
                attempt=told.attempt,
                scheduled_at=moment,
                claimed_at=moment,
                started_at=started,
                gpus=list(told.entry.assigned or ()),
                **values,
            )
        )

    def _release(self, told: Told) -> None:
        """Its node gave this attempt up: for an end that the server made, or for another attempt that nobody has."""
        row = rows.must_find_locked(self._tx, told.task_id)
        outcome = told.entry.outcome or ""
        status = outcome.partition(":")[2]
        if status in {one.value for one in TERMINAL}:
            reason = Reason.NODE_LOST.value if status == Status.FAILED.value else None
            detail = "its node had been told so before the database was put back"
            ends.finish(
                self._tx, row, Status(status), self._now, actor=ACTOR, reason=reason, detail=detail, cards_gone=True
            )
            return
        self._back(row, "its node gave the attempt up before the database was put back")

    def _back(self, row: Row, detail: str) -> None:
        ends.back_to_pending(self._tx, row, self._now, actor=ACTOR, detail=detail, cards_gone=True)

    # -- who holds what --------------------------------------------------------------------------------------------

    def _gone(self, node_id: str, holder: Holder) -> bool:
        """Whether the node itself has said that it holds nothing of this: it told all, and did not name it."""
        if holder in self._over and holder not in self._live:
            return True
        word = self._told.get(node_id)
        return word is not None and holder not in word.claims and self._live.get(holder) != node_id

    # -- the end of the state ------------------------------------------------------------------------------------

    def _raise_numbers(self) -> None:
        decided, tx = self._result.plan, self._tx
        if self._result.facts.since is None:
            return
        tx.execute(sa.update(control_plane).values(revision=decided.revision))
        ended = [status.value for status in TERMINAL]
        tx.execute(sa.update(tasks).where(tasks.c.status.not_in(ended)).values(attempt_floor=decided.attempt))

    def _end_state(self) -> None:
        tx, found, decided = self._tx, self._result.facts, self._result.plan
        told = sorted(self._told)
        spans = tx.execute(sa.select(control_plane.c.lost_spans)).scalar() or []
        if found.since is not None:
            span = [found.lost_from or 0, decided.revision, []]
            tx.execute(
                sa.update(control_plane).values(rolled_back_since=None, lost_from=None, lost_spans=[*spans, span])
            )
            # Who has not told everything is still asked; the others are done with.
            tx.execute(sa.update(witnesses).values(lost_to=decided.revision))
        _settle(tx, told)
        tx.execute(sa.delete(witnesses).where(witnesses.c.node_id.in_(told)))
        tx.execute(sa.delete(orphans).where(orphans.c.node_id.in_(told)))
        left = [word.node_id for word in (*decided.unheard, *decided.waiting)]
        detail = (
            f"{len(self._result.adopted)} orphan(s) adopted, {len(self._result.stopped)} to be stopped; revision "
            f"{decided.revision}."
        )
        if left:
            detail += f" Not heard: {', '.join(left[:50])}."
        emit(tx, EventKind.DATABASE_ROLLED_BACK, code="accepted", actor=ACTOR, detail=detail)
        emit(tx, EventKind.OPERATOR_ACTION, code="accept_restore", actor=ACTOR, detail=detail)
        # Seen by every process, also where no task has changed.
        tx.touch_task("")


def _settle(tx: Tx, told: list[str]) -> None:
    """These nodes are not asked about the lost time again: their next beat still tells of it."""
    spans = tx.execute(sa.select(control_plane.c.lost_spans)).scalar() or []
    kept = [[start, end, sorted({*settled, *told})] for start, end, settled in spans]
    tx.execute(sa.update(control_plane).values(lost_spans=kept))


def _desired(told: Told, stop: bool) -> Desired:
    if stop:
        return Desired.STOP
    return Desired.SLEEP if told.state is OrphanState.SLEEPING else Desired.RUN


def _spec_of(told: Told) -> TaskSpec:
    try:
        return decode(TaskSpec, told.entry.spec) if told.entry.spec is not None else _bare(told)
    except WireError:
        return _bare(told)


def _bare(told: Told) -> TaskSpec:
    driver = Driver.PROCESS if told.entry.driver == Driver.PROCESS.value else Driver.DOCKER
    return TaskSpec(name=told.task_id, driver=driver)


def _moment_of(told: Told, now: datetime) -> str:
    """When it began, as far as its node told; the node's clock never makes it later than now."""
    try:
        return to_wire(min(now, from_wire(told.entry.since))) if told.entry.since else to_wire(now)
    except (ValueError, OverflowError):
        return to_wire(now)
