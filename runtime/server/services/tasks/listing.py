"""Lists of tasks: for operators newest first by cursor, for agents in the order in which they should start."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import sqlalchemy as sa

from runtime.protocol.problems import Problem
from runtime.protocol.states import Kind, Status
from runtime.server.services.tasks import view
from runtime.server.store.tables import tasks


def for_operator(
    connection: sa.Connection,
    *,
    statuses: list[Status] | None,
    node_id: str | None,
    kind: Kind | None,
    labels: list[tuple[str, str]],
    limit: int,
    cursor: str | None,
) -> tuple[list[view.Stored], str | None]:
    """Newest first, and the cursor of the next page (None: that was all). Raises Problem bad_parameter."""
    query = sa.select(tasks).order_by(tasks.c.created_at.desc(), tasks.c.uid.desc()).limit(limit + 1)
    if statuses is not None:
        query = query.where(tasks.c.status.in_([status.value for status in statuses]))
    if node_id is not None:
        query = query.where(tasks.c.node_id == node_id)
    if kind is not None:
        query = query.where(tasks.c.kind == kind.value)
    for name, value in labels:
        query = query.where(tasks.c.labels[name].as_string() == value)
    if cursor is not None:
        created_at, uid = _read_cursor(cursor)
        query = query.where(
            (tasks.c.created_at < created_at) | ((tasks.c.created_at == created_at) & (tasks.c.uid < uid))
        )
    found = list(connection.execute(query).mappings())
    following = _cursor(found[limit - 1]) if len(found) > limit else None
    return view.read(connection, found[:limit]), following


def for_agent(connection: sa.Connection, node_id: str, statuses: list[Status], limit: int) -> list[view.Stored]:
    """The node's tasks, highest priority first, oldest first."""
    query = (
        sa.select(tasks)
        .where(tasks.c.node_id == node_id, tasks.c.status.in_([status.value for status in statuses]))
        .order_by(tasks.c.priority.desc(), tasks.c.created_at, tasks.c.uid)
        .limit(limit)
    )
    return view.read(connection, connection.execute(query).mappings())


def _cursor(row: Any) -> str:
    return base64.urlsafe_b64encode(f"{row['created_at']}|{row['uid']}".encode()).decode().rstrip("=")


def _read_cursor(text: str) -> tuple[str, str]:
    try:
        created_at, bar, uid = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii").partition("|")
    except (ValueError, binascii.Error):
        bar = created_at = uid = ""
    if not bar or not f"{created_at}{uid}".isprintable():
        raise Problem("bad_parameter", "The cursor is not one of next_cursor's.", parameter="cursor")
    return created_at, uid
