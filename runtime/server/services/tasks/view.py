"""Rows into tasks as read: the one mapping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa

from runtime.protocol.heartbeat import TaskHealth
from runtime.protocol.nodes import NodeState
from runtime.protocol.states import Driver, Kind, Phase, Status
from runtime.protocol.tasks import AssignedGpu, Attempt, Endpoint, Task, TaskSpec, TaskWarning
from runtime.server.services.node_view import NodeView
from runtime.server.services.tasks.confidential import public_spec, whole_spec
from runtime.server.services.tasks.rows import Row
from runtime.server.services.tasks.rules import reason_class
from runtime.server.store.tables import attempts
from runtime.server.store.vault import Vault


class Nodes(Protocol):
    """What is known of nodes from their newest beats."""

    def view(self, node_id: str) -> NodeView | None: ...

    def task_health(self, node_id: str) -> Mapping[str, TaskHealth]: ...


@dataclass(frozen=True)
class Stored:
    """A task's row with its attempts, read together."""

    row: Row
    attempts: list[Row]


def read(connection: sa.Connection, found: Iterable[Row]) -> list[Stored]:
    """``found`` with their attempts, in one statement for all of them."""
    found = list(found)
    by_uid: dict[str, list[Row]] = {row["uid"]: [] for row in found}
    uids = list(by_uid)
    # SQLite takes 32,766 parameters and answers small lists faster than a join over the whole table.
    query = sa.select(attempts).where(attempts.c.uid.in_(uids)).order_by(attempts.c.uid, attempts.c.attempt)
    for attempt in connection.execute(query).mappings() if uids else ():
        by_uid[attempt["uid"]].append(attempt)
    return [Stored(row, by_uid[row["uid"]]) for row in found]


def task(stored: Stored, presence: Nodes, vault: Vault | None = None) -> Task:
    """The whole task; with ``vault`` its secrets too (for the claim's owner only)."""
    row = stored.row
    spec = whole_spec(row["spec"], row["secrets"], vault) if vault is not None else public_spec(row["spec"])
    status = Status(row["status"])
    health = health_of(row, presence)
    node = presence.view(row["node_id"]) if row["node_id"] is not None else None
    return Task(
        id=row["id"],
        uid=row["uid"],
        name=row["name"],
        kind=Kind(row["kind"]),
        driver=Driver(row["driver"]),
        status=status,
        desired=row["desired"],
        phase=_phase(status, health),
        ready=health.ready if health is not None and status is Status.RUNNING and _is_heard(node) else None,
        node_id=row["node_id"],
        attempt=row["attempt"],
        starts=row["starts"],
        max_attempts=row["max_attempts"],
        priority=row["priority"],
        labels=row["labels"],
        created_at=row["created_at"],
        scheduled_at=row["scheduled_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        node_finished_at=row["node_finished_at"],
        exit_code=row["exit_code"],
        reason=row["reason"],
        reason_class=reason_class(row["reason"]),
        error=row["error"],
        log_tail=row["log_tail"],
        stalled=row["stalled"],
        node_lost_since=row["node_lost_since"],
        gpus_assigned=_cards(stored),
        endpoints=_endpoints(spec, status, node),
        attempts=[_attempt(attempt) for attempt in stored.attempts],
        warnings=[TaskWarning(**warning) for warning in row["warnings"]],
        spec=spec,
    )


OUTLINE = ("id", "uid", "status", "node_id", "attempt")


def outline(row: Row) -> dict[str, Any]:
    """What an agent sees of another node's task, as sent: that it may not see the rest is not that it is unknown."""
    return {name: row[name] for name in OUTLINE}


def health_of(row: Row, presence: Nodes) -> TaskHealth | None:
    """What the node's newest beat says of the task's present attempt; None: nothing."""
    if row["node_id"] is None or row["status"] not in (Status.RUNNING.value, Status.SLEEPING.value):
        return None
    health = presence.task_health(row["node_id"]).get(row["uid"])
    return health if health is not None and health.attempt == row["attempt"] else None


def _is_heard(node: NodeView | None) -> bool:
    """What a node that fell silent said of a probe is not known any more."""
    return node is not None and node.state is NodeState.ONLINE


def _phase(status: Status, health: TaskHealth | None) -> str | None:
    if health is not None:
        return health.phase
    # A running task of which the node has not said anything yet: unknown.
    return Phase.SLEEPING.value if status is Status.SLEEPING else None


def _cards(stored: Stored) -> list[AssignedGpu]:
    if stored.row["node_id"] is None:
        return []
    current = [attempt for attempt in stored.attempts if attempt["attempt"] == stored.row["attempt"]]
    return [AssignedGpu(**card) for attempt in current for card in attempt["gpus"]]


def _endpoints(spec: TaskSpec, status: Status, node: NodeView | None) -> list[Endpoint]:
    if status is not Status.RUNNING or node is None:
        return []
    return [
        Endpoint(port.container, node.mgmt_addr, port.host or (port.container if spec.network == "host" else None))
        for port in spec.ports
    ]


def _attempt(row: Row) -> Attempt:
    return Attempt(
        attempt=row["attempt"],
        node_id=row["node_id"],
        instance_id=row["instance_id"],
        scheduled_at=row["scheduled_at"],
        claimed_at=row["claimed_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        node_finished_at=row["node_finished_at"],
        exit_code=row["exit_code"],
        reason=row["reason"],
        reason_class=reason_class(row["reason"]),
        error=row["error"],
        container_id=row["container_id"],
    )
