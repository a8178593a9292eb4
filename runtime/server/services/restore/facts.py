"""What an acceptance is decided on: what nodes have told, and what the database that was put back holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from runtime.protocol.codec import WireError, decode
from runtime.protocol.heartbeat import Foreign
from runtime.protocol.names import is_task_id
from runtime.protocol.nodes import NodeState
from runtime.protocol.states import ON_NODE, OrphanState, Status
from runtime.protocol.times import from_wire
from runtime.server.store.tables import control_plane, nodes, orphans, tasks, witnesses

Holder = tuple[str, int]
"""(uid, attempt)"""


@dataclass(frozen=True)
class Told:
    """One orphan: a claim or a conclusion of ``uid``'s attempt, by the word of the node that has it."""

    node_id: str
    instance_id: str | None
    uid: str
    attempt: int
    task_id: str
    state: OrphanState
    entry: Foreign

    @property
    def holder(self) -> Holder:
        return self.uid, self.attempt


@dataclass(frozen=True)
class Known:
    """A task's row, as far as it matters here."""

    uid: str
    task_id: str
    status: Status
    node_id: str | None
    attempt: int
    claim_token: str | None


@dataclass(frozen=True)
class NodeWord:
    """What is known of a node's word. ``heard``: it spoke since the database was found out. ``told``: it has said all
    that it holds, ``claims`` included. ``waiting``: it will in a moment."""

    node_id: str
    state: NodeState | None
    last_seen_at: str | None
    heard: bool
    told: bool
    waiting: bool = False
    claims: frozenset[Holder] = frozenset()


@dataclass(frozen=True)
class Facts:
    """``since`` None: the database is not (any more) known to be put back; then only ``late`` nodes may be left.
    ``taken``: task id -> uid, of the ids that orphans have."""

    since: str | None
    revision: int
    lost_from: int | None
    seen_revision: int
    nodes: tuple[NodeWord, ...] = ()
    orphans: tuple[Told, ...] = ()
    tasks: dict[str, Known] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    late: frozenset[str] = frozenset()

    @property
    def nothing_to_do(self) -> bool:
        return self.since is None and not self.late


def read(connection: sa.Connection, now: datetime, patience_s: float) -> Facts:
    """The facts now. ``patience_s``: how long a node that does not say that it has told everything is waited for;
    after that an older agent has told what it can."""
    plane = connection.execute(sa.select(control_plane)).one()
    found = {row.node_id: row for row in connection.execute(sa.select(witnesses))}
    late = frozenset(node_id for node_id, row in found.items() if row.lost_to is not None)
    told = tuple(_told(connection, found))
    held = (tasks.c.status.in_([status.value for status in ON_NODE]), tasks.c.uid.in_({one.uid for one in told}))
    rows = connection.execute(sa.select(tasks).where(sa.or_(*held))).mappings()
    ids = sa.select(tasks.c.id, tasks.c.uid).where(tasks.c.id.in_({one.task_id for one in told}))
    words = [_word(row, found.get(row.id), now, patience_s) for row in connection.execute(_NODES)]
    if plane.rolled_back_since is None:
        words = [word for word in words if word.node_id in late]
    return Facts(
        since=plane.rolled_back_since,
        revision=plane.revision,
        lost_from=plane.lost_from,
        seen_revision=max((row.seen_revision for row in found.values()), default=0),
        nodes=tuple(words),
        orphans=told,
        tasks={row["uid"]: _known(row) for row in rows},
        taken={row.id: row.uid for row in connection.execute(ids)},
        late=late,
    )


_NODES = sa.select(nodes.c.id, nodes.c.state, nodes.c.last_seen_at, nodes.c.instance_id).order_by(nodes.c.id)


def _told(connection: sa.Connection, found: dict[str, Any]) -> Iterable[Told]:
    for row in connection.execute(sa.select(orphans).order_by(orphans.c.node_id, orphans.c.uid, orphans.c.attempt)):
        witness = found.get(row.node_id)
        try:
            entry = decode(Foreign, row.facts)
            state = OrphanState(entry.state or OrphanState.RUNNING)
        except (WireError, ValueError):
            continue
        if witness is not None and entry.task_id is not None and is_task_id(entry.task_id):
            yield Told(row.node_id, witness.instance_id, row.uid, row.attempt, entry.task_id, state, entry)


def _known(row: sa.RowMapping) -> Known:
    status = Status(row["status"])
    return Known(row["uid"], row["id"], status, row["node_id"], row["attempt"], row["claim_token"])


def _word(node: Any, witness: Any, now: datetime, patience_s: float) -> NodeWord:
    if witness is None:
        return NodeWord(node.id, NodeState(node.state), node.last_seen_at, heard=False, told=False)
    patient = now - from_wire(witness.heard_at) < timedelta(seconds=patience_s)
    said = witness.told_at is not None
    claims = frozenset((uid, attempt) for uid, attempt in witness.claims or ())
    return NodeWord(
        node.id,
        NodeState(node.state),
        node.last_seen_at,
        heard=True,
        told=said and (witness.complete or not patient),
        waiting=patient and not (said and witness.complete),
        claims=claims,
    )
