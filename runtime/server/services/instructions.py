"""Slice, image and file instructions: made by operators, pulled, claimed and reported by one node."""

from __future__ import annotations

import hmac
import uuid
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from runtime.protocol.codec import encode
from runtime.protocol.instructions import (
    Channel,
    Instruction,
    InstructionStatus,
    InstructionUpdate,
    SliceRequest,
)
from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import Problem
from runtime.protocol.times import from_wire, to_wire
from runtime.server.services import reservations
from runtime.server.services.events import emit
from runtime.server.services.instruction_check import Request, faults
from runtime.server.services.node_view import NodeView
from runtime.server.services.tasks.claims import Reporter
from runtime.server.services.tasks.rows import plain
from runtime.server.store.database import Database
from runtime.server.store.tables import instructions, nodes
from runtime.server.store.transaction import Tx
from runtime.server.validation import refusal

EXPIRES_S: dict[Channel, float] = {Channel.SLICE: 600, Channel.IMAGE: 86400, Channel.FILE: 86400}
SLICE_LIMIT_S = 120
REPORT_GRACE_S = 60
"""An instruction without a report for its limit and this is shown as overdue."""

_EDGES = {
    (InstructionStatus.PENDING, InstructionStatus.RUNNING),
    (InstructionStatus.RUNNING, InstructionStatus.SUCCEEDED),
    (InstructionStatus.RUNNING, InstructionStatus.FAILED),
}
OVER = frozenset(InstructionStatus) - {InstructionStatus.PENDING, InstructionStatus.RUNNING}
_SERVER_EDGES = {
    (InstructionStatus.PENDING, InstructionStatus.CANCELLED),
    (InstructionStatus.PENDING, InstructionStatus.EXPIRED),
}


def create(
    db: Database, channel: Channel, request: Request, actor: str, at: datetime, view_of_node: NodeView | None = None
) -> Instruction:
    """Queue an instruction for its node; one about slices holds its card until it is over.

    ``view_of_node``: what is known of it now. Raises Problem node_not_found, invalid_task, card_in_use.
    """
    values = {
        "id": str(uuid.uuid4()),
        "channel": channel.value,
        "node_id": request.node_id,
        "status": InstructionStatus.PENDING.value,
        "request": encode(request),
        "created_at": to_wire(at),
        "expires_at": to_wire(at + timedelta(seconds=EXPIRES_S[channel])),
    }

    wrong = faults(request, view_of_node)

    def change(tx: Tx) -> Instruction:
        if tx.execute(sa.select(nodes.c.id).where(nodes.c.id == request.node_id)).first() is None:
            raise Problem("node_not_found", f"There is no node {request.node_id!r}.")
        if wrong:
            raise refusal("invalid_task", wrong)
        if isinstance(request, SliceRequest):
            reservations.reserve(tx, request, str(values["id"]))
        tx.execute(sa.insert(instructions).values(**values))
        tx.touch_instruction(str(values["id"]))
        row = _locked(tx, channel, str(values["id"]))
        _tell(tx, row, InstructionStatus.PENDING, actor, "created")
        return view(row, at)

    return db.write(change)


def listed(
    connection: sa.Connection,
    channel: Channel,
    at: datetime,
    *,
    node_id: str | None,
    statuses: list[InstructionStatus] | None,
    limit: int,
) -> list[Instruction]:
    """Instructions of a channel, oldest first. What ran out of time while pending is shown as expired."""
    query = sa.select(instructions).where(instructions.c.channel == channel.value)
    if node_id is not None:
        query = query.where(instructions.c.node_id == node_id)
    if statuses is not None:
        moment = to_wire(at)
        waiting = instructions.c.status == InstructionStatus.PENDING.value
        over = instructions.c.expires_at <= moment
        parts: list[sa.ColumnElement[bool]] = []
        for status in statuses:
            if status is InstructionStatus.PENDING:
                parts.append(waiting & ~over)
            elif status is InstructionStatus.EXPIRED:
                parts.append((instructions.c.status == status.value) | (waiting & over))
            else:
                parts.append(instructions.c.status == status.value)
        query = query.where(sa.or_(*parts))
    rows = connection.execute(query.order_by(instructions.c.created_at, instructions.c.id).limit(limit)).mappings()
    return [view(row, at) for row in rows]


def get(connection: sa.Connection, channel: Channel, instruction_id: str, at: datetime) -> Instruction:
    """One instruction. Raises Problem request_not_found."""
    row = connection.execute(_by_id(channel, instruction_id)).mappings().first()
    if row is None:
        raise _not_found(channel, instruction_id)
    return view(row, at)


def cancel(db: Database, channel: Channel, instruction_id: str, actor: str, at: datetime) -> Instruction:
    """Take a pending instruction back. Raises Problem request_not_found, illegal_transition (409)."""

    def change(tx: Tx) -> Instruction:
        row = _locked(tx, channel, instruction_id)
        status = _status(row, at)
        if status is InstructionStatus.CANCELLED:
            return view(row, at)
        if status is not InstructionStatus.PENDING:
            raise Problem(
                "illegal_transition",
                f"Instruction {instruction_id} is {status.value}; only a pending one can be cancelled.",
                status=409,
                from_status=status.value,
            )
        _set(tx, row, InstructionStatus.CANCELLED, {"finished_at": to_wire(at)}, actor, None)
        return view(_locked(tx, channel, instruction_id), at)

    return db.write(change)


def report(
    db: Database, channel: Channel, instruction_id: str, who: Reporter, update: InstructionUpdate, at: datetime
) -> Instruction:
    """A node's compare-and-set. Raises Problem request_not_found, illegal_transition, state_conflict."""
    edge = (update.from_status, update.status)
    if edge not in _EDGES:
        never = edge not in _SERVER_EDGES
        raise Problem(
            "illegal_transition",
            f"{update.from_status.value} {'never becomes' if never else 'becomes only on the server'} "
            f"{update.status.value}.",
            status=422 if never else 409,
            from_status=update.from_status.value,
            to_status=update.status.value,
        )

    def change(tx: Tx) -> tuple[Instruction, bool, bool]:
        row = _locked(tx, channel, instruction_id)
        owner = row["claim_token"]
        mine = row["node_id"] == who.node_id and owner is not None and hmac.compare_digest(owner, update.claim_token)
        claim = update.from_status is InstructionStatus.PENDING
        fits = _status(row, at) is update.from_status and row["node_id"] == who.node_id and (claim or mine)
        if not fits:
            return view(row, at), True, mine
        values: dict[str, Any] = {}
        if claim:
            values = {"claim_token": update.claim_token, "claimed_at": to_wire(at)}
        else:
            values = {"finished_at": to_wire(at), "result": update.result, "error": plain(update.error)}
        _set(tx, row, update.status, values, who.name, plain(update.error))
        return view(_locked(tx, channel, instruction_id), at), False, True

    found, conflict, mine = db.write(change)
    if conflict:
        raise Problem(
            "state_conflict",
            f"Instruction {instruction_id} is {found.status.value} on node {found.node_id}; nothing was changed.",
            node_id=found.node_id,
            claim_token_matches=mine,
            request_status=found.status.value,
            request=encode(found),
        )
    return found


def expire(tx: Tx, at: datetime) -> int:
    """End what nobody claimed in time; how many."""
    overdue = list(
        tx.execute(
            sa.select(instructions)
            .where(instructions.c.status == InstructionStatus.PENDING.value, instructions.c.expires_at <= to_wire(at))
            .with_for_update()
        ).mappings()
    )
    for row in overdue:
        _set(tx, row, InstructionStatus.EXPIRED, {"finished_at": to_wire(at)}, "server", "no node claimed it in time")
    return len(overdue)


def view(row: sa.RowMapping, at: datetime) -> Instruction:
    """A row as read. ``overdue``: running, and its limit and the grace went by without a report."""
    status = _status(row, at)
    overdue = False
    if status is InstructionStatus.RUNNING and row["claimed_at"] is not None:
        limit = row["request"].get("timeout_s") or SLICE_LIMIT_S
        overdue = (at - from_wire(row["claimed_at"])).total_seconds() > limit + REPORT_GRACE_S
    return Instruction(
        id=row["id"],
        channel=Channel(row["channel"]),
        node_id=row["node_id"],
        status=status,
        request=row["request"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        claimed_at=row["claimed_at"],
        finished_at=row["finished_at"],
        overdue=overdue,
        result=row["result"],
        error=row["error"],
    )


def _status(row: sa.RowMapping, at: datetime) -> InstructionStatus:
    status = InstructionStatus(row["status"])
    if status is InstructionStatus.PENDING and row["expires_at"] <= to_wire(at):
        return InstructionStatus.EXPIRED
    return status


def _by_id(channel: Channel, instruction_id: str) -> sa.Select[Any]:
    # A NUL is the one character that PostgreSQL does not even compare.
    wanted = instruction_id.replace("\x00", "")
    return sa.select(instructions).where(instructions.c.id == wanted, instructions.c.channel == channel.value)


def _locked(tx: Tx, channel: Channel, instruction_id: str) -> sa.RowMapping:
    row = tx.execute(_by_id(channel, instruction_id).with_for_update()).mappings().first()
    if row is None:
        raise _not_found(channel, instruction_id)
    return row


def _not_found(channel: Channel, instruction_id: str) -> Problem:
    return Problem("request_not_found", f"There is no {channel.value} instruction {instruction_id[:80]!r}.")


def _set(
    tx: Tx, row: sa.RowMapping, status: InstructionStatus, values: dict[str, Any], actor: str, detail: str | None
) -> None:
    changed = tx.execute(
        sa.update(instructions)
        .where(instructions.c.id == row["id"], instructions.c.status == row["status"])
        .values(status=status.value, **values)
    )
    assert changed.rowcount == 1, "a locked instruction changed under its lock"
    if status in OVER and row["channel"] == Channel.SLICE.value:
        reservations.free(tx, row["id"])
    tx.touch_instruction(row["id"])
    _tell(tx, row, status, actor, detail)


def _tell(tx: Tx, row: sa.RowMapping, status: InstructionStatus, actor: str, detail: str | None) -> None:
    text = f"{row['channel']} instruction {row['id']} is {status.value}"
    emit(
        tx,
        EventKind.INSTRUCTION_STATE,
        code=status.value,
        node_id=row["node_id"],
        gpu_uuid=plain(row["request"].get("gpu_uuid")),
        actor=actor,
        detail=f"{text}: {detail}" if detail else text,
    )
