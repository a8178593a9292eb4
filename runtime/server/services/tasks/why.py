"""Why a task is in its state: for what waits, every constraint on every node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from runtime.protocol.states import Desired, Status
from runtime.protocol.why import Why, WhySubject
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement import explain, snapshot
from runtime.server.services.tasks import rows
from runtime.server.services.tasks.rows import Row


def of_task(connection: sa.Connection, task_id: str, views: Sequence[NodeView], mps_max: int, now: datetime) -> Why:
    """Why the task is where it is. Raises Problem task_not_found."""
    row = rows.find(connection, task_id)
    status = Status(row["status"])
    subject = WhySubject("task", row["id"])
    if status is not Status.PENDING:
        return Why(subject, status.value, _sentence(row, status), _since(row, status), fits=True)
    sites = snapshot.sites(connection, views, mps_max)
    found = explain.nodes(snapshot.candidate(connection, row, now), sites)
    return Why(
        subject,
        status.value,
        explain.summary(found),
        row["created_at"],
        fits=bool(found) and found[0].distance == 0,
        nodes=found,
        smallest_change=explain.smallest_change(found),
    )


def _sentence(row: Row, status: Status) -> str:
    node = row["node_id"]
    if status is Status.SCHEDULED:
        return f"It was given to {node} and waits for that node to claim it."
    if status is Status.RUNNING:
        lost = f"; the node has been silent since {row['node_lost_since']}" if row["node_lost_since"] else ""
        return f"{node} holds it{lost}."
    if status is Status.SLEEPING:
        waking = row["desired"] == Desired.RUN.value
        return f"Its container sleeps on {node}" + (" and waits for its cards to be free." if waking else ".")
    end = f" ({row['reason']})" if row["reason"] else ""
    return f"It ended as {status.value}{end}."


def _since(row: Row, status: Status) -> str | None:
    columns = {Status.SCHEDULED: "scheduled_at", Status.RUNNING: "started_at", Status.SLEEPING: "started_at"}
    since: str | None = row[columns.get(status, "finished_at")]
    return since
