"""Writing what was heard, in batches: about one statement a second for all nodes together.

A flush that fails loses nothing: what it took is given back and written with the next one.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.nodes import EventKind
from runtime.server.services.events import emit
from runtime.server.services.presence import Noted, Presence
from runtime.server.services.tasks import lifecycle
from runtime.server.store.database import Database, Tx
from runtime.server.store.tables import nodes

log = logging.getLogger(__name__)

_NEWER = sa.and_(
    nodes.c.id == sa.bindparam("of_node"),
    nodes.c.instance_id == sa.bindparam("of_instance"),
    # Another process may have stored a later beat of the node.
    sa.or_(
        nodes.c.run < sa.bindparam("new_run"),
        sa.and_(nodes.c.run == sa.bindparam("new_run"), nodes.c.seq <= sa.bindparam("new_seq")),
    ),
)
_SEEN = (
    sa.update(nodes)
    .where(_NEWER)
    .values(
        run=sa.bindparam("new_run"),
        seq=sa.bindparam("new_seq"),
        last_seen_at=sa.bindparam("seen"),
        leaving=sa.bindparam("leaves"),
        boot_id=sa.bindparam("boot"),
    )
)
_FACTS = sa.update(nodes).where(_NEWER).values(facts=sa.bindparam("new_facts"), digests=sa.bindparam("new_digests"))


def flush(db: Database, presence: Presence, *, hold_back: bool = False) -> int:
    """Write every node heard since the last flush; returns how many. Raises when nothing was written.

    ``hold_back``: no work is taken off lost cards (the database was put back).
    """
    taken = presence.take_dirty()
    noted = presence.take_noted()
    if not taken and not noted:
        return 0
    seen: list[dict[str, Any]] = []
    facts: list[dict[str, Any]] = []
    for node_id in sorted(taken):
        with presence.locked(node_id):
            held = presence.held(node_id)
            if held is None or held.seen_wall is None:
                continue
            key = {
                "of_node": node_id,
                "of_instance": held.instance_id,
                "new_run": held.run,
                "new_seq": held.seq,
            }
            seen.append(
                {
                    **key,
                    "seen": times.to_wire(times.from_epoch(held.seen_wall)),
                    "leaves": held.leaving,
                    "boot": held.boot_id,
                }
            )
            if held.facts_changed:
                held.facts_changed = False
                facts.append({**key, "new_facts": held.facts(), "new_digests": dict(held.digests)})

    def change(tx: Tx) -> None:
        if seen:
            tx.execute(_SEEN, seen)
        if facts:
            tx.execute(_FACTS, facts)
        for note in noted:
            _tell(tx, note, hold_back)

    try:
        db.write(change)
    except Exception:
        presence.give_back_dirty(taken)
        presence.give_back_noted(noted)
        for row in facts:
            with presence.locked(row["of_node"]):
                held = presence.held(row["of_node"])
                if held is not None:
                    held.facts_changed = True
        raise
    presence.wrote()
    return len(seen)


def _tell(tx: Tx, note: Noted, hold_back: bool) -> None:
    actor = f"node:{note.node_id}"
    if note.change is not None:
        emit(
            tx,
            note.change.kind,
            node_id=note.node_id,
            gpu_uuid=note.change.uuid,
            actor=actor,
            detail=note.change.detail,
        )
        if note.change.kind is EventKind.GPU_LOST and note.change.uuid is not None and not hold_back:
            lifecycle.card_lost(tx, note.node_id, note.change.uuid)
    elif note.code == "build_changed":
        emit(tx, EventKind.BUILD_CHANGED, node_id=note.node_id, actor=actor, detail=note.text)
    else:
        emit(tx, EventKind.NODE_STATE, code=note.code, node_id=note.node_id, actor=actor, detail=note.text)
