"""Writing what was heard, in batches: about one statement a second for all nodes together.

A flush that fails loses nothing: what it took is given back and written with the next one.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from runtime.protocol import times
from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import Problem
from runtime.server.services.backlog import Noted
from runtime.server.services.events import emit
from runtime.server.services.presence import Presence
from runtime.server.services.tasks import lifecycle
from runtime.server.store.database import Database
from runtime.server.store.tables import nodes
from runtime.server.store.transaction import Tx

log = logging.getLogger(__name__)

_NEWER = sa.and_(
    nodes.c.id == sa.bindparam("of_node"),
    nodes.c.instance_id == sa.bindparam("of_instance"),
    # Which of two boots is the true one is decided in one place (see binding), and written there.
    nodes.c.boot_id.is_not_distinct_from(sa.bindparam("of_boot", type_=nodes.c.boot_id.type)),
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
    )
)
_FACTS = sa.update(nodes).where(_NEWER).values(facts=sa.bindparam("new_facts"), digests=sa.bindparam("new_digests"))


def flush(db: Database, presence: Presence, *, hold_back: bool = False) -> int:
    """Write every node heard since the last flush; returns how many. Raises when nothing was written.

    ``hold_back``: no work is taken off lost cards (the database was put back).
    """
    taken, noted = presence.backlog.take()
    if not taken and not noted:
        return 0
    said = {node_id: _Said(node_id, [], [], []) for node_id in taken | {note.node_id for note in noted}}
    for note in noted:
        said[note.node_id].noted.append(note)
    written = 0
    for node_id in taken:
        with presence.locked(node_id):
            held = presence.held(node_id)
            if held is None or held.seen_wall is None:
                continue
            written += 1
            key = {
                "of_node": node_id,
                "of_instance": held.instance_id,
                "of_boot": held.boot_id,
                "new_run": held.run,
                "new_seq": held.seq,
            }
            said[node_id].seen.append(
                {
                    **key,
                    "seen": times.to_wire(times.from_epoch(held.seen_wall)),
                    "leaves": held.leaving,
                }
            )
            if held.facts_changed:
                held.facts_changed = False
                said[node_id].facts.append({**key, "new_facts": held.facts(), "new_digests": dict(held.digests)})
    left = dict(said)
    try:
        _write(db, [said[node_id] for node_id in sorted(said)], left, hold_back)
    except Exception:
        presence.backlog.give_back(taken & left.keys(), [note for note in noted if note.node_id in left])
        for node_id in left:
            with presence.locked(node_id):
                held = presence.held(node_id)
                if held is not None and left[node_id].facts:
                    held.facts_changed = True
        raise
    presence.backlog.wrote()
    return written


@dataclass(frozen=True)
class _Said:
    """What one node said since the last flush, as rows."""

    node_id: str
    seen: list[dict[str, Any]]
    facts: list[dict[str, Any]]
    noted: list[Noted]


def _write(db: Database, said: Sequence[_Said], left: dict[str, _Said], hold_back: bool) -> None:
    """Write all in one transaction; what is written, or can never be, is taken out of ``left``.

    What the database refuses for its content is looked for by halves, so that one node keeps nobody else's word
    from being stored.
    """
    try:
        db.write(functools.partial(_change, said=said, hold_back=hold_back))
    except Problem:
        raise
    except Exception as error:
        if len(said) > 1:
            _write(db, said[: len(said) // 2], left, hold_back)
            _write(db, said[len(said) // 2 :], left, hold_back)
            return
        reason = str(error).splitlines()[0]
        log.error("node %s: the database refuses what it said, which is left out: %s", said[0].node_id, reason)
    for one in said:
        del left[one.node_id]


def _change(tx: Tx, *, said: Sequence[_Said], hold_back: bool) -> None:
    seen = [row for one in said for row in one.seen]
    facts = [row for one in said for row in one.facts]
    if seen:
        tx.execute(_SEEN, seen)
    if facts:
        tx.execute(_FACTS, facts)
    for one in said:
        for note in one.noted:
            _tell(tx, note, hold_back)


def _tell(tx: Tx, note: Noted, hold_back: bool) -> None:
    actor = f"node:{note.node_id}"
    if note.change is not None:
        emit(
            tx,
            note.change.kind,
            code=note.change.code,
            node_id=note.node_id,
            gpu_uuid=note.change.uuid,
            actor=actor,
            detail=note.change.detail,
        )
        if note.change.kind is EventKind.GPU_LOST and note.change.uuid is not None and not hold_back:
            lifecycle.card_lost(tx, note.node_id, note.change.uuid, note.change.detail)
    elif note.code == "build_changed":
        emit(tx, EventKind.BUILD_CHANGED, node_id=note.node_id, actor=actor, detail=note.text)
    else:
        emit(tx, EventKind.NODE_STATE, code=note.code, node_id=note.node_id, actor=actor, detail=note.text)
