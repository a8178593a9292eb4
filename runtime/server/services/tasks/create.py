"""``POST /api/v1/tasks``: check everything, store it once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from dataclasses import asdict
from datetime import datetime

import sqlalchemy as sa

from runtime.protocol.names import new_task_id
from runtime.protocol.nodes import EventKind
from runtime.protocol.problems import Problem
from runtime.protocol.states import Desired, Status
from runtime.protocol.tasks import TaskSpec
from runtime.protocol.times import to_wire
from runtime.server import validation
from runtime.server.services.events import emit
from runtime.server.services.tasks import rows, view
from runtime.server.services.tasks.check import check, starts_allowed
from runtime.server.services.tasks.confidential import public_part, secret_part
from runtime.server.store.database import Database
from runtime.server.store.tables import tasks
from runtime.server.store.transaction import Tx
from runtime.server.store.vault import Vault


def create(
    db: Database,
    vault: Vault,
    body: bytes,
    *,
    actor: str,
    fleet_vendors: Collection[str],
    default_vendor: str | None,
    now: datetime,
) -> tuple[view.Stored, bool]:
    """The stored task, and whether it is new. A body sent twice under one id is stored once.

    Raises Problem malformed_json, invalid_task (every fault at once), vendor_required, task_exists.
    """
    sent = validation.parse(TaskSpec, body, code="invalid_task", forbid_unknown=True)
    checked = check(sent, fleet_vendors, default_vendor)
    if checked.only_vendor_missing:
        raise validation.refusal("vendor_required", checked.faults)
    if checked.faults:
        raise validation.refusal("invalid_task", checked.faults)
    spec = checked.spec
    digest = vault.digest(_canonical(body))
    secrets = secret_part(spec)
    sealed = vault.seal(secrets) if secrets is not None else None
    task_id = spec.id or new_task_id()
    values = {
        "id": task_id,
        "uid": str(uuid.uuid4()),
        "name": spec.name,
        "kind": spec.kind.value,
        "driver": spec.driver.value,
        "status": Status.PENDING.value,
        "desired": Desired.RUN.value,
        "max_attempts": starts_allowed(spec),
        "priority": spec.priority,
        "created_at": to_wire(now),
        "labels": spec.labels,
        "warnings": [asdict(warning) for warning in checked.warnings],
        "spec": public_part(spec),
        "secrets": sealed,
        "body_digest": digest,
    }

    def change(tx: Tx) -> tuple[view.Stored, bool]:
        # Asking first leaves the id's unique key for the race of two equal requests.
        row = rows.find_locked(tx, task_id)
        new = row is None
        if row is None:
            tx.execute(sa.insert(tasks).values(**values))
            tx.touch_task(str(values["uid"]))
            emit(
                tx,
                EventKind.TASK_STATE,
                code=Status.PENDING.value,
                task_id=task_id,
                attempt=0,
                actor=actor,
                detail="created",
            )
            row = rows.must_find_locked(tx, task_id)
        elif row["body_digest"] != digest:
            raise _exists(task_id)
        return view.read(tx.connection, [row])[0], new

    try:
        return db.write(change)
    except sa.exc.IntegrityError:
        return db.write(change)


def _exists(task_id: str) -> Problem:
    return Problem(
        "task_exists",
        f"There is a task {task_id!r} with another body; choose another id or delete it.",
        task_id=task_id,
    )


def _canonical(body: bytes) -> bytes:
    """The body without the accidents of writing: order of members and white space."""
    return json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
