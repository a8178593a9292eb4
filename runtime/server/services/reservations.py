"""The card that a slice request is about, held from the request to its end: nobody gets it whole, in part or shared.

The request holds the card's own slot in the allocations, in the mode that the slices have; tasks on other slices of
that card may stay, since its mode does not change. The unique key has the last word, as it has for tasks.
"""

from __future__ import annotations

import sqlalchemy as sa

from runtime.protocol.instructions import SliceRequest
from runtime.protocol.problems import Problem
from runtime.server.services.instruction_check import CARDS_OF
from runtime.server.services.placement.model import WHOLE_SLOT, slice_mode, slot_of
from runtime.server.services.tasks.why import holders
from runtime.server.store.tables import gpu_allocations
from runtime.server.store.transaction import Tx

_columns = gpu_allocations.c
RESERVES: sa.ColumnElement[bool] = (_columns.slot == WHOLE_SLOT) & (_columns.mode != "whole")
"""Rows that are a request's and no task's."""


def reserve(tx: Tx, request: SliceRequest, instruction_id: str) -> None:
    """Hold the card for this request. Raises Problem card_in_use: a mode changes only while nobody holds a part of the
    card, a slice goes only while nobody has it, and one request at a time is about a card."""
    mode = slice_mode(CARDS_OF[request.vendor])
    there = (_columns.node_id == request.node_id, _columns.parent_uuid == request.gpu_uuid)
    for row in tx.execute(sa.select(_columns.slot, _columns.mode).where(*there).with_for_update()):
        if row.slot == WHOLE_SLOT or row.mode != mode or _goes(request, row.slot):
            raise _in_use(tx, request)
    try:
        with tx.connection.begin_nested():
            tx.execute(
                sa.insert(gpu_allocations).values(
                    node_id=request.node_id,
                    parent_uuid=request.gpu_uuid,
                    slot=WHOLE_SLOT,
                    gpu_uuid=request.gpu_uuid,
                    mode=mode,
                    uid=instruction_id,
                    attempt=0,
                )
            )
    except sa.exc.IntegrityError:
        raise _in_use(tx, request) from None


def free(tx: Tx, instruction_id: str) -> None:
    """The request is over."""
    tx.execute(sa.delete(gpu_allocations).where(_columns.uid == instruction_id, _columns.attempt == 0))


def reserved(connection: sa.Connection) -> set[tuple[str, str]]:
    """(node, card) that requests hold now."""
    query = sa.select(_columns.node_id, _columns.parent_uuid).where(RESERVES)
    return {(row.node_id, row.parent_uuid) for row in connection.execute(query)}


def _goes(request: SliceRequest, slot: int) -> bool:
    """Whether the request destroys the slice in this slot; without ``ci_id`` all that is in the GPU instance goes."""
    if request.op != "destroy":
        return False
    return any(
        slot == slot_of(one.gi_id, one.ci_id)
        if one.ci_id is not None
        else slot_of(one.gi_id, 0) <= slot < slot_of(one.gi_id + 1, 0)
        for one in request.instances
    )


def _in_use(tx: Tx, request: SliceRequest) -> Problem:
    held = holders(tx.connection, request.node_id).get(request.node_id, {}).get(request.gpu_uuid, [])
    who = " and ".join(held) or "somebody"
    return Problem(
        "card_in_use",
        f"Card {request.gpu_uuid} of node {request.node_id} is held by {who}; ask again when it is not.",
        node_id=request.node_id,
        gpu_uuid=request.gpu_uuid,
        held_by=held,
    )
