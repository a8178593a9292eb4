"""What the decision is made on, read from the database in one go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runtime.protocol.states import ON_NODE, Desired, Status
from runtime.protocol.times import to_wire
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement.model import Candidate, Held, Need, Occupant, Site, need_of, sites_of
from runtime.server.services.placement.needs import NEEDS
from runtime.server.services.placement.waking import Sleeper
from runtime.server.store.tables import attempts, control_plane, exclusions, gpu_allocations, tasks


@dataclass(frozen=True)
class Snapshot:
    candidates: list[Candidate]
    sleepers: list[Sleeper]
    occupants: list[Occupant]
    held: list[Held]

    @property
    def empty(self) -> bool:
        """Nobody waits for anything."""
        return not self.candidates and not self.sleepers

    def sites(self, views: Iterable[NodeView], mps_max: int) -> dict[str, Site]:
        return sites_of(views, self.occupants, self.held, mps_max)


def read(connection: sa.Connection, now: datetime) -> Snapshot:
    """Everything that waits, and what is taken. Two statements when nobody waits.

    While the database is known to be put back, nobody is seen waiting: nothing is placed.
    """
    if connection.execute(sa.select(control_plane.c.rolled_back_since)).scalar() is not None:
        return Snapshot([], [], [], [])
    waiting = _waiting(connection)
    sleepers = _sleepers(connection)
    if not waiting and not sleepers:
        return Snapshot([], [], [], [])
    excluded = _exclusions(connection, now)
    needs = NEEDS.of(connection, (row["uid"] for row in waiting))
    candidates = [_candidate(row, needs[row["uid"]], excluded) for row in waiting if row["uid"] in needs]
    return Snapshot(candidates, sleepers, occupants(connection), held_cards(connection))


def sites(connection: sa.Connection, views: Iterable[NodeView], mps_max: int) -> dict[str, Site]:
    """Every node with what is left of it now."""
    return sites_of(views, occupants(connection), held_cards(connection), mps_max)


def candidate(connection: sa.Connection, row: sa.RowMapping, now: datetime) -> Candidate:
    """One waiting task, from its whole row."""
    return _candidate(row, need_of(row["spec"]), _exclusions(connection, now))


def sleeper(connection: sa.Connection, uid: str) -> Sleeper | None:
    """The task as one that waits for its cards; None when it does not."""
    return next(iter(_sleepers(connection, tasks.c.uid == uid)), None)


def _candidate(row: sa.RowMapping, need: Need, excluded: dict[str, frozenset[str]]) -> Candidate:
    return Candidate(
        row["uid"],
        row["id"],
        row["attempt"],
        row["priority"],
        row["created_at"],
        need,
        excluded.get(row["uid"], frozenset()),
    )


def occupants(connection: sa.Connection) -> list[Occupant]:
    """The tasks that are on nodes."""
    query = sa.select(tasks.c.uid, tasks.c.node_id).where(tasks.c.status.in_([status.value for status in ON_NODE]))
    found = connection.execute(query).all()
    needs = NEEDS.of(connection, (row.uid for row in found))
    return [Occupant(row.node_id, needs[row.uid]) for row in found if row.uid in needs]


def held_cards(connection: sa.Connection) -> list[Held]:
    """Every allocation, releasing ones too: they are not free."""
    columns = gpu_allocations.c
    query = sa.select(columns.node_id, columns.parent_uuid, columns.slot, columns.gpu_uuid, columns.mode)
    return [Held(*row) for row in connection.execute(query)]


def _waiting(connection: sa.Connection) -> list[sa.RowMapping]:
    query = sa.select(tasks.c.uid, tasks.c.id, tasks.c.attempt, tasks.c.priority, tasks.c.created_at).where(
        tasks.c.status == Status.PENDING.value, tasks.c.desired == Desired.RUN.value
    )
    return list(connection.execute(query).mappings())


def _sleepers(connection: sa.Connection, *only: sa.ColumnElement[bool]) -> list[Sleeper]:
    has_cards = sa.exists().where(gpu_allocations.c.uid == tasks.c.uid, gpu_allocations.c.attempt == tasks.c.attempt)
    query = (
        sa.select(tasks.c.uid, tasks.c.attempt, tasks.c.node_id, tasks.c.spec, attempts.c.gpus)
        .join(attempts, (attempts.c.uid == tasks.c.uid) & (attempts.c.attempt == tasks.c.attempt))
        .where(tasks.c.status == Status.SLEEPING.value, tasks.c.desired == Desired.RUN.value, ~has_cards, *only)
        .order_by(tasks.c.priority.desc(), tasks.c.created_at)
    )
    return [
        Sleeper(row.uid, row.attempt, row.node_id, row.gpus, cards)
        for row in connection.execute(query)
        if row.gpus and (cards := need_of(row.spec).cards) is not None
    ]


def _exclusions(connection: sa.Connection, now: datetime) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    query = sa.select(exclusions.c.uid, exclusions.c.node_id).where(exclusions.c.until > to_wire(now))
    for row in connection.execute(query):
        found[row.uid].add(row.node_id)
    return {uid: frozenset(nodes) for uid, nodes in found.items()}
