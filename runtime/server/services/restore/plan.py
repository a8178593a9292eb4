"""What becomes of each orphan, and of each row that nobody explains: a pure decision, one table.

The highest attempt that any node knows is the true one: a copy is older than what nodes say, never newer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from runtime.protocol.states import TERMINAL, OrphanState, Status
from runtime.server.services.restore.facts import Facts, Holder, Known, NodeWord, Told

FAR_REVISION = 1_000_000
FAR_ATTEMPT = 1000
"""How far above anything seen numbers go on: also above what a node has seen that is not heard yet."""

STOP = "stop"
"""What an operator may want of an orphan; all others are adopted."""


class Verdict(str, Enum):
    """``adopt``: its row is made, or taken to this claim; a conclusion is then told again by its node. ``release``:
    the attempt is over on its node, and no later one is known. ``known``: the database says the same, or knows the
    end. ``stale``: another attempt is the valid one; the node ends its copy by itself. ``blocked``: another task has
    its id by now."""

    ADOPT = "adopt"
    RELEASE = "release"
    KNOWN = "known"
    STALE = "stale"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class Decision:
    told: Told
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Plan:
    """``requeue``: tasks that were given to a node which says that it does not have them. ``unheard``: nodes whose
    word is missing: what they hold is not known. ``revision`` and ``attempt`` are where numbers go on."""

    decisions: tuple[Decision, ...] = ()
    requeue: tuple[Known, ...] = ()
    unheard: tuple[NodeWord, ...] = ()
    waiting: tuple[NodeWord, ...] = ()
    revision: int = 0
    attempt: int = 0

    def of(self, verdict: Verdict) -> list[Decision]:
        return [decision for decision in self.decisions if decision.verdict is verdict]


def decide(facts: Facts, highest_attempt: int) -> Plan:
    """``highest_attempt``: of all rows of the database."""
    by_uid: dict[str, list[Told]] = defaultdict(list)
    for told in facts.orphans:
        by_uid[told.uid].append(told)
    decisions: list[Decision] = []
    explained: set[str] = set()
    for uid, entries in by_uid.items():
        best = max(entries, key=_rank)
        row = facts.tasks.get(uid)
        verdict, why = judge(best, row, facts.taken.get(best.task_id))
        decisions.append(Decision(best, verdict, why))
        if verdict in (Verdict.ADOPT, Verdict.RELEASE):
            explained.add(uid)
        for other in entries:
            if other is not best:
                decisions.append(
                    Decision(other, Verdict.STALE, f"attempt {best.attempt} on {best.node_id} is the later")
                )
    words = {word.node_id: word for word in facts.nodes}
    requeue = [
        row
        for row in facts.tasks.values()
        if row.status is Status.SCHEDULED and row.uid not in explained and _denied(row, words.get(row.node_id or ""))
    ]
    attempts = [highest_attempt, *(told.attempt for told in facts.orphans)]
    return Plan(
        decisions=tuple(sorted(decisions, key=lambda one: (one.told.node_id, one.told.task_id, one.told.attempt))),
        requeue=tuple(sorted(requeue, key=lambda row: row.task_id)),
        unheard=tuple(word for word in facts.nodes if not word.told and not word.waiting),
        waiting=tuple(word for word in facts.nodes if word.waiting),
        revision=max(facts.revision, facts.seen_revision) + FAR_REVISION,
        attempt=max(attempts) + FAR_ATTEMPT,
    )


def judge(told: Told, row: Known | None, id_holder: str | None) -> tuple[Verdict, str]:
    """One orphan against its task's row; ``id_holder`` is the uid of the task that has its id in the database."""
    given_up = told.state is OrphanState.SUPERSEDED
    if row is None:
        if given_up:
            return Verdict.STALE, "its node gave it up for another attempt or end, of which nobody else has told"
        if id_holder is not None:
            return Verdict.BLOCKED, f"the id {told.task_id} is another task's by now"
        return Verdict.ADOPT, "this database does not know it"
    if row.status in TERMINAL:
        return Verdict.KNOWN, f"it ended as {row.status.value}"
    if row.attempt > told.attempt:
        return Verdict.STALE, f"attempt {row.attempt} is the later one"
    here = row.node_id == told.node_id and row.attempt == told.attempt
    if given_up:
        if here:
            return Verdict.RELEASE, "its node gave the attempt up for another one or an end, of which nobody has told"
        return Verdict.KNOWN, f"it is {row.status.value}, and this attempt is over"
    token = told.entry.claim_token
    if here and row.status in _SHOWS.get(told.state, ()) and token in (None, row.claim_token):
        return Verdict.KNOWN, f"it is {row.status.value} here, too"
    return Verdict.ADOPT, f"this database holds it for {_words(row)}"


def is_to_stop(told: Told, *, has_row: bool, choices: Mapping[str, str], default: str) -> bool:
    """Whether what is adopted is ended at once. ``has_row``: the database knows the task. ``choices``: uid or task id
    -> what the operator wants of it, ``default`` of all others; of what has ended nothing can be wanted any more."""
    if told.state is OrphanState.CLAIMED and not has_row:
        return True  # its secret values are nowhere any more
    if told.state is OrphanState.CONCLUDED:
        return False
    return (choices.get(told.uid) or choices.get(told.task_id) or default) == STOP


def status_of(told: Told) -> Status:
    """The status that an adopted task's row gets: a conclusion is told again from where it was told the first time."""
    if told.state is OrphanState.SLEEPING:
        return Status.SLEEPING
    if told.state is OrphanState.CONCLUDED and told.entry.from_status == Status.SLEEPING.value:
        return Status.SLEEPING
    return Status.RUNNING


_SHOWS = {OrphanState.RUNNING: (Status.RUNNING,), OrphanState.CLAIMED: (Status.RUNNING,),
          OrphanState.SLEEPING: (Status.SLEEPING,)}  # fmt: skip

_ORDER = (OrphanState.SUPERSEDED, OrphanState.CLAIMED, OrphanState.CONCLUDED, OrphanState.SLEEPING, OrphanState.RUNNING)


def _rank(told: Told) -> tuple[int, int]:
    return told.attempt, _ORDER.index(told.state)


def _denied(row: Known, word: NodeWord | None) -> bool:
    holder: Holder = (row.uid, row.attempt)
    return word is not None and word.told and holder not in word.claims


def _words(row: Known) -> str:
    where = f" on {row.node_id}" if row.node_id is not None else ""
    return f"{row.status.value}{where}, attempt {row.attempt}"
