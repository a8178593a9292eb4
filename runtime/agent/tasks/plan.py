"""From a task and what its checks found to the container that shall be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Optional

from runtime.agent.drivers.driver import (
    LABEL_ATTEMPT,
    LABEL_CARDS,
    LABEL_CLAIM,
    LABEL_CONTROL_PLANE,
    LABEL_DEADLINE,
    LABEL_GIVEN,
    LABEL_INSTANCE,
    LABEL_NODE,
    LABEL_TASK,
    LABEL_UID,
    ContainerPlan,
)
from runtime.agent.hardware.giving.description import CardOptions
from runtime.agent.hardware.visibility import OWNED_VARIABLES
from runtime.agent.tasks.checks import Checked
from runtime.agent.tasks.records import ClaimRecord
from runtime.protocol.tasks import TaskSpec
from runtime.protocol.times import now, to_wire

NAME_PREFIX = "task-"
RESUME_VARIABLE = "HETEROFLOW_RESUME_FROM_CHECKPOINT"


def engine_options(cards: CardOptions) -> dict[str, Any]:
    """Parts of the engine's host configuration that give cards. A device file can be read and written, not made."""
    host: dict[str, Any] = {}
    if cards.runtime is not None:
        host["Runtime"] = cards.runtime
    if cards.requests:
        host["DeviceRequests"] = [dict(request) for request in cards.requests]
    if cards.files:
        host["Devices"] = [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"} for path in cards.files
        ]
    if cards.groups:
        host["GroupAdd"] = [str(group) for group in cards.groups]
    return host


def container_plan(
    record: ClaimRecord,
    spec: TaskSpec,
    checked: Checked,
    node_id: str,
    instance_id: str,
    log_mib: int,
) -> ContainerPlan:
    """The container of one attempt. The agent's variables replace what task and image say."""
    cards = checked.cards
    return ContainerPlan(
        name=NAME_PREFIX + record.task_id,
        image=checked.image,
        labels={**labels(record, spec, node_id, instance_id), **card_labels(checked)},
        env=environment(checked.env, spec.resume_from_checkpoint, cards.environment),
        unset=tuple(name for name in OWNED_VARIABLES if name not in cards.environment),
        entrypoint=spec.entrypoint,
        command=spec.command,
        workdir=spec.workdir,
        user=spec.user,
        mounts=checked.mounts,
        ports=tuple((port.container, port.host) for port in spec.ports),
        network=spec.network,
        cpus=spec.cpus,
        memory_mib=spec.memory_mib,
        shm_mib=checked.shm_mib,
        ipc_host=checked.ipc_host,
        log_max_mib=log_mib,
        host_config=engine_options(cards),
        files=cards.files,
        shown=cards.mounts,
        gpus=checked.gpus,
    )


def environment(said: dict[str, str], resume_from: Optional[str], cards: Mapping[str, str]) -> dict[str, str]:
    """What the task said, and over it what is the agent's: where to resume, and which cards are seen. Nothing of the
    agent's own environment."""
    env = {name: value for name, value in said.items() if name not in OWNED_VARIABLES}
    if resume_from is not None:
        env[RESUME_VARIABLE] = resume_from
    return {**env, **cards}


def labels(record: ClaimRecord, spec: TaskSpec, node_id: str, instance_id: str) -> dict[str, str]:
    """Who the container belongs to, so that it can be taken over from it alone."""
    deadline = to_wire(now() + timedelta(seconds=spec.timeout_s)) if spec.timeout_s is not None else ""
    return {
        LABEL_CONTROL_PLANE: record.control_plane_id,
        LABEL_NODE: node_id,
        LABEL_INSTANCE: instance_id,
        LABEL_TASK: record.task_id,
        LABEL_UID: record.key.uid,
        LABEL_ATTEMPT: str(record.key.attempt),
        LABEL_CLAIM: record.claim_token,
        LABEL_DEADLINE: deadline,
    }


def card_labels(checked: Checked) -> dict[str, str]:
    """Of cards that their uuids do not name to an engine: which they are, and by what they were given."""
    if not checked.cards.named:
        return {}
    return {LABEL_CARDS: ",".join(gpu.uuid for gpu in checked.gpus), LABEL_GIVEN: checked.cards.named}


def spare_name(record: ClaimRecord) -> str:
    """The name when the plain one is taken."""
    return f"{NAME_PREFIX}{record.task_id}-{record.key.uid.replace('-', '')[:8]}"
