"""How claims and letters stand in the journal: one JSON text each beside a few columns. Pure.

What was written by an earlier release is read as well. A row that is not what it should be raises ValueError,
KeyError, TypeError, IndexError or AttributeError.
"""

from __future__ import annotations

import json
from typing import Any

from runtime.agent.tasks.classify import Sent, Stop, StopReason
from runtime.agent.tasks.confidential import without_secrets
from runtime.agent.tasks.records import ClaimRecord, Key, Letter, Stage
from runtime.protocol.codec import decode, encode
from runtime.protocol.states import Driver, Status
from runtime.protocol.tasks import AssignedGpu, TaskSpec, TaskWarning


def claim_body(claim: ClaimRecord) -> dict[str, Any]:
    """What is kept of a claim beside its columns; without secrets."""
    stop = claim.stop
    return {
        "spec": encode(without_secrets(claim.spec), drop_none=True),
        "gpus": encode(list(claim.gpus), drop_none=True),
        "driver": claim.driver.value,
        "asked": [claim.asked_mark, claim.asked_mono],
        "started": [claim.started_mark, claim.started_mono, claim.started_wall],
        "ready": claim.ready,
        "stop": [stop.reason.value, stop.at, stop.sent.value, stop.mono, stop.mark] if stop else None,
        "start_error": claim.start_error,
        "pull": [claim.pull_attempts, claim.pull_spent_s],
        "mounts": [list(mount) for mount in claim.mounts],
        "slept": [claim.slept_run, claim.ran_before_s],
    }


def claim_of(row: tuple[Any, ...]) -> ClaimRecord:
    """``row``: uid, attempt, task_id, control_plane_id, claim_token, stage, container_id, body."""
    uid, attempt, task_id, control_plane_id, claim_token, stage, container_id, text = row
    body = json.loads(text)
    stop = body["stop"]
    asked_mark, asked_mono = body.get("asked") or (None, None)
    mark, mono, wall = body["started"]
    slept_run, ran_before_s = body.get("slept") or (None, 0.0)
    return ClaimRecord(
        key=Key(uid, attempt),
        task_id=task_id,
        control_plane_id=control_plane_id,
        claim_token=claim_token,
        stage=Stage(stage),
        spec=decode(TaskSpec, body["spec"]),
        gpus=tuple(decode(AssignedGpu, gpu) for gpu in body["gpus"]),
        driver=Driver(body["driver"]),
        container_id=container_id,
        asked_mark=asked_mark,
        asked_mono=asked_mono,
        started_mark=mark,
        started_mono=mono,
        started_wall=wall,
        ready=body["ready"],
        stop=Stop(StopReason(stop[0]), stop[1], Sent(stop[2]), *stop[3:5]) if stop else None,
        start_error=body["start_error"],
        pull_attempts=body["pull"][0],
        pull_spent_s=body["pull"][1],
        mounts=tuple((mount[0], mount[1], mount[2]) for mount in body["mounts"]),
        slept_run=slept_run,
        ran_before_s=ran_before_s,
    )


_LETTER_FIELDS = ("task_id", "control_plane_id", "claim_token", "reason", "exit_code", "error", "log_tail",
                  "node_finished_at", "container_id")  # fmt: skip


def letter_body(letter: Letter) -> dict[str, Any]:
    """What is kept of a letter beside its columns."""
    body = {name: getattr(letter, name) for name in _LETTER_FIELDS}
    return {
        **body,
        "from_status": letter.from_status.value,
        "status": letter.status.value,
        "spec": encode(without_secrets(letter.spec), drop_none=True) if letter.spec is not None else None,
        "gpus": encode(list(letter.gpus), drop_none=True),
        "driver": letter.driver.value,
        "warnings": encode(list(letter.warnings)),
    }


def letter_of(row: tuple[Any, ...]) -> Letter:
    """``row``: uid, attempt, body, delivered_at, outcome."""
    body = json.loads(row[2])
    spec = body.get("spec")
    return Letter(
        key=Key(row[0], row[1]),
        from_status=Status(body["from_status"]),
        status=Status(body["status"]),
        delivered_at=row[3],
        outcome=row[4],
        spec=decode(TaskSpec, spec) if spec is not None else None,
        gpus=tuple(decode(AssignedGpu, gpu) for gpu in body.get("gpus") or ()),
        driver=Driver(body.get("driver") or Driver.DOCKER),
        warnings=tuple(decode(TaskWarning, warning) for warning in body.get("warnings") or ()),
        **{name: body[name] for name in _LETTER_FIELDS},
    )
