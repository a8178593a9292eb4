"""The cards of what is adopted: allocated to it as its node says, so that nobody else gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from runtime.server.services import binding
from runtime.server.services.node_view import NodeView
from runtime.server.services.placement.model import CardNeed, Pick, Site, need_of
from runtime.server.services.placement.snapshot import held_cards
from runtime.server.services.restore.facts import Holder, Told
from runtime.server.store.tables import gpu_allocations, nodes
from runtime.server.store.transaction import Tx

Gone = Callable[[str, Holder], bool]
"""``gone(node_id, holder)``: the node has said that it does not hold this."""


def allocate(tx: Tx, told: Told, spec: dict[str, Any] | None, mps_max: int, gone: Gone) -> list[str]:
    """Allocate the cards of a running orphan; the UUIDs that could not be, since another live holder has them.

    What stands in the way and is gone by the word of the node itself goes: a copy does not know that it ended.
    """
    wanted = need_of(spec).cards if spec is not None else None
    columns = gpu_allocations.c
    mine = (columns.uid == told.uid, columns.attempt == told.attempt)
    view = _view(tx, told.node_id)
    failed: list[str] = []
    for card in told.entry.assigned or ():
        uuid = str(card.get("uuid"))
        parent = str(card.get("parent_uuid") or uuid)
        if tx.execute(sa.select(columns.uid).where(*mine, columns.gpu_uuid == uuid)).first() is not None:
            continue
        _clear(tx, told, parent, gone)
        slot, mode = _slot(tx, view, told.node_id, uuid, parent, wanted, mps_max)
        if slot is None:
            failed.append(uuid)
            continue
        key = {"node_id": told.node_id, "parent_uuid": parent, "slot": slot}
        tx.execute(
            sa.insert(gpu_allocations).values(
                **key, gpu_uuid=uuid, mode=mode, uid=told.uid, attempt=told.attempt, releasing=False
            )
        )
    tx.execute(sa.update(gpu_allocations).where(*mine).values(releasing=False))
    return failed


def reserve(tx: Tx, told: Told, mps_max: int, gone: Gone) -> None:
    """The cards of an orphan that gets no row: not free before its node says that it is gone."""
    allocate(tx, told, None, mps_max, gone)
    columns = gpu_allocations.c
    mine = (columns.uid == told.uid, columns.attempt == told.attempt)
    tx.execute(sa.update(gpu_allocations).where(*mine).values(releasing=True))


def _clear(tx: Tx, told: Told, parent: str, gone: Gone) -> None:
    columns = gpu_allocations.c
    there = (columns.node_id == told.node_id, columns.parent_uuid == parent)
    for row in tx.execute(sa.select(columns.uid, columns.attempt).where(*there)).all():
        holder = (row.uid, row.attempt)
        if holder != told.holder and gone(told.node_id, holder):
            tx.execute(sa.delete(gpu_allocations).where(*there, columns.uid == row.uid, columns.attempt == row.attempt))


def _slot(
    tx: Tx, view: NodeView | None, node_id: str, uuid: str, parent: str, wanted: CardNeed | None, mps_max: int
) -> tuple[int | None, str]:
    """Slot and mode; None where it is not free."""
    known = next((card for card in view.gpus if card.uuid == uuid), None) if view is not None else None
    if view is None or known is None:
        # Not in the facts that the copy holds: its place is as good as unique by its own name.
        taken = {
            held.slot for held in held_cards(tx.connection) if (held.node_id, held.parent_uuid) == (node_id, parent)
        }
        whole = parent == uuid
        slot = next(number for number in range(0 if whole else 1, len(taken) + 2) if number not in taken)
        return (None if whole and taken else slot), ("whole" if whole else "mig")
    site = Site(view, mps_max)
    for held in held_cards(tx.connection):
        if held.node_id == node_id:
            site.held.setdefault(held.parent_uuid, {})[held.slot] = held
    need = wanted or CardNeed(count=1, slice=known.profile if known.parent_uuid is not None else None)
    pick: Pick | None = site.pick(known, need)
    return (pick.slot, pick.mode) if pick is not None else (None, "whole")


def _view(tx: Tx, node_id: str) -> NodeView | None:
    row = tx.execute(sa.select(nodes).where(nodes.c.id == node_id)).first()
    return binding.held_of(row).view() if row is not None else None
