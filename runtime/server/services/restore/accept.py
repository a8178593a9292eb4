"""An operator's word ends the state: what nodes hold becomes rows again or is stopped, and numbers go on far above.

One transaction: whoever is killed half-way has done nothing, and runs it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import sqlalchemy as sa

from runtime.server.services.restore import facts, plan
from runtime.server.services.restore.carrying import Acceptance, Result
from runtime.server.services.restore.plan import Plan, Verdict
from runtime.server.store.database import Database
from runtime.server.store.tables import control_plane, tasks
from runtime.server.store.transaction import Tx


def look(db: Database, now: datetime, patience_s: float) -> Result:
    """What an acceptance would do now."""
    with db.read() as connection:
        return _look(connection, now, patience_s)


def accept(
    db: Database,
    choices: Mapping[str, str],
    default: str,
    now: datetime,
    *,
    force: bool,
    patience_s: float,
    mps_max: int,
) -> Result:
    """Carry it out, on what is true in this very transaction. ``choices``: uid or task id -> what to do with that
    orphan; ``default`` with all others. ``force``: also without the word of nodes that were not heard, and with
    orphans that cannot be adopted."""

    def change(tx: Tx) -> Result:
        tx.execute(sa.select(control_plane.c.id).with_for_update())
        result = _look(tx.connection, now, patience_s)
        if result.facts.nothing_to_do:
            return result
        result.refused = None if force else objection(result.plan)
        if result.refused is None:
            Acceptance(tx, result, choices, default, now, mps_max).carry_out()
            result.done = True
        return result

    return db.write(change)


def _look(connection: sa.Connection, now: datetime, patience_s: float) -> Result:
    found = facts.read(connection, now, patience_s)
    highest = connection.execute(sa.select(sa.func.max(tasks.c.attempt))).scalar() or 0
    floor = connection.execute(sa.select(sa.func.max(tasks.c.attempt_floor))).scalar() or 0
    return Result(found, plan.decide(found, max(highest, floor)))


def objection(decided: Plan) -> str | None:
    """Why this is not done without --force; None when nothing speaks against it."""
    missing = [word.node_id for word in (*decided.unheard, *decided.waiting)]
    if missing:
        return (
            f"{len(missing)} node(s) have not told what they hold since the database was put back "
            f"({', '.join(missing[:20])}); unknown is not none. Bring them back and run this again, or give --force: "
            "what they hold is then kept there, and asked for when they come."
        )
    blocked = decided.of(Verdict.BLOCKED)
    if blocked:
        names = ", ".join(decision.told.task_id for decision in blocked[:20])
        return (
            f"{len(blocked)} orphan(s) have ids that other tasks have by now ({names}); delete those tasks and run "
            "this again, or give --force: their nodes then end them, like those of deleted tasks."
        )
    return None


def patience(interval_s: float) -> timedelta:
    """How long a node that has just been heard has to tell all that it holds."""
    return timedelta(seconds=3 * interval_s)
