"""Why a task is in its state: for what waits, every constraint on every node; for what shall wake, on its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import sqlalchemy as sa

from runtime.protocol.states import Desired, Status
from runtime.protocol.why import Why, WhySubject
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement import explain, snapshot, waking
from runtime.server.services.tasks import rows, view
from runtime.server.services.tasks.rows import Row
from runtime.server.store.tables import control_plane, gpu_allocations, instructions, tasks


class Nodes(view.Nodes, Protocol):
    def views(self) -> Sequence[NodeView]: ...


def of_task(connection: sa.Connection, task_id: str, nodes: Nodes, mps_max: int, now: datetime) -> Why:
    """Why the task is where it is. Raises Problem task_not_found."""
    row = rows.find(connection, task_id)
    status = Status(row["status"])
    subject = WhySubject("task", row["id"])
    if status is Status.SLEEPING and row["desired"] == Desired.RUN.value:
        return _of_waking(connection, row, subject, nodes, mps_max)
    if status is not Status.PENDING:
        return Why(
            subject, status.value, _sentence(row, status, nodes, _held(connection, row)), _since(row, status), fits=True
        )
    put_back = connection.execute(sa.select(control_plane.c.rolled_back_since)).scalar()
    if put_back is not None:
        text = "Nothing is placed: the database was put back, and `heterofleet server accept-restore` was not run yet."
        return Why(subject, status.value, text, put_back)
    sites = snapshot.sites(connection, nodes.views(), mps_max)
    found = explain.nodes(snapshot.candidate(connection, row, now), sites, holders(connection))
    return Why(
        subject,
        status.value,
        explain.summary(found),
        row["created_at"],
        fits=bool(found) and found[0].distance == 0,
        nodes=found,
        smallest_change=explain.smallest_change(found),
    )


def _of_waking(connection: sa.Connection, row: Row, subject: WhySubject, nodes: Nodes, mps_max: int) -> Why:
    node_id, since = row["node_id"], _since(row, Status.SLEEPING)
    sleeper = snapshot.sleeper(connection, row["uid"])
    if sleeper is None:
        cards = "Its cards are its own again" if row["spec"].get("gpus") else "It needs no cards"
        text = f"{cards}; {node_id} is to start its container{_silent(row)}{_detail(row, nodes)}."
        return Why(subject, Status.SLEEPING.value, text, since, fits=True)
    site = snapshot.sites(connection, nodes.views(), mps_max).get(node_id)
    found = waking.explain(sleeper, site, holders(connection, node_id).get(node_id, {}))
    change = explain.smallest_change([found])
    if change is None:
        waits = "the next round gives them to it"
    else:
        waits = "; ".join(one.text for one in found.constraints if not one.ok)
    text = f"It wakes on {node_id} and nowhere else, with the cards that it had; {waits}{_silent(row)}."
    return Why(
        subject,
        Status.SLEEPING.value,
        text,
        since,
        fits=change is None,
        nodes=[found],
        smallest_change=change,
    )


def holders(connection: sa.Connection, node_id: str | None = None) -> dict[str, dict[str, list[str]]]:
    """Node -> card -> who holds it, or a part of it, in words."""
    columns = gpu_allocations.c
    query = (
        sa.select(
            columns.node_id, columns.parent_uuid, columns.releasing, tasks.c.id, instructions.c.id.label("request")
        )
        .outerjoin(tasks, tasks.c.uid == columns.uid)
        .outerjoin(instructions, instructions.c.id == columns.uid)
        .order_by(columns.node_id, columns.parent_uuid, columns.slot)
    )
    if node_id is not None:
        query = query.where(columns.node_id == node_id)
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in connection.execute(query):
        who = f"task {row.id}" if row.id is not None else "a task that was deleted"
        if row.request is not None:
            who = f"slice request {row.request}"
        left = ", whose container may still be there" if row.releasing else ""
        found[row.node_id][row.parent_uuid].append(who + left)
    return found


def _sentence(row: Row, status: Status, nodes: Nodes, cards: Sequence[str]) -> str:
    node = row["node_id"]
    if status is Status.SCHEDULED:
        return f"It was given to {node} and waits for that node to claim it{_cards(row, cards, nodes)}."
    if status is Status.RUNNING:
        return f"{node} holds it{_silent(row)}{_detail(row, nodes)}{_cards(row, cards, nodes)}."
    if status is Status.SLEEPING:
        return f"Its container sleeps on {node}{_silent(row)}{_detail(row, nodes)}."
    end = f" ({row['reason']})" if row["reason"] else ""
    return f"It ended as {status.value}{end}."


def _held(connection: sa.Connection, row: Row) -> list[str]:
    """Its cards and slices."""
    columns = gpu_allocations.c
    query = sa.select(columns.gpu_uuid).where(columns.uid == row["uid"], columns.attempt == row["attempt"])
    return list(connection.execute(query.order_by(columns.gpu_uuid)).scalars())


def _cards(row: Row, cards: Sequence[str], nodes: Nodes) -> str:
    """What is wrong with its cards."""
    view = next((one for one in nodes.views() if one.node_id == row["node_id"]), None) if cards else None
    found = [view.card_troubles[card].text for card in cards if card in view.card_troubles] if view is not None else []
    return f"; {'; '.join(found)}" if found else ""


def _silent(row: Row) -> str:
    return f"; the node has been silent since {row['node_lost_since']}" if row["node_lost_since"] else ""


def _detail(row: Row, nodes: Nodes) -> str:
    """What the node itself adds."""
    health = view.health_of(row, nodes)
    return f"; the node says: {health.detail}" if health is not None and health.detail else ""


def _since(row: Row, status: Status) -> str | None:
    columns = {Status.SCHEDULED: "scheduled_at", Status.RUNNING: "started_at", Status.SLEEPING: "started_at"}
    since: str | None = row[columns.get(status, "finished_at")]
    return since
