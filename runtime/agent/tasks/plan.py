"""From a task and what its checks found to the container that shall be. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Optional

from runtime.agent.drivers.driver import (
    LABEL_ATTEMPT,
    LABEL_CLAIM,
    LABEL_CONTROL_PLANE,
    LABEL_DEADLINE,
    LABEL_INSTANCE,
    LABEL_NODE,
    LABEL_TASK,
    LABEL_UID,
    ContainerPlan,
)
from runtime.agent.hardware.visibility import OWNED_VARIABLES, container_options
from runtime.agent.tasks.checks import Checked
from runtime.agent.tasks.records import ClaimRecord
from runtime.protocol.heartbeat import Gpu
from runtime.protocol.tasks import TaskSpec
from runtime.protocol.times import now, to_wire

NAME_PREFIX = "task-"
RESUME_VARIABLE = "HETEROFLOW_RESUME_FROM_CHECKPOINT"


@dataclass(frozen=True)
class CardOptions:
    """``env``: the variables that say which cards are seen; they belong to the agent. ``host``: parts of the
    engine's host configuration."""

    env: dict[str, str]
    host: dict[str, Any]


def card_options(gpus: tuple[Gpu, ...], runtimes: tuple[str, ...]) -> CardOptions:
    """The engine's options for these cards, all of one vendor."""
    vendor: Optional[str] = gpus[0].vendor if gpus else None
    options = container_options(vendor, list(gpus), list(runtimes))
    host: dict[str, Any] = {}
    if "runtime" in options:
        host["Runtime"] = options["runtime"]
    if "device_requests" in options:
        host["DeviceRequests"] = options["device_requests"]
    return CardOptions(options["environment"], host)


def container_plan(
    record: ClaimRecord,
    spec: TaskSpec,
    checked: Checked,
    cards: CardOptions,
    node_id: str,
    instance_id: str,
    log_mib: int,
) -> ContainerPlan:
    """The container of one attempt. The agent's variables replace what task and image say."""
    return ContainerPlan(
        name=NAME_PREFIX + record.task_id,
        image=checked.image,
        labels=labels(record, spec, node_id, instance_id),
        env=environment(checked.env, spec.resume_from_checkpoint, cards.env),
        unset=tuple(name for name in OWNED_VARIABLES if name not in cards.env),
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
        devices=cards.host,
        gpus=checked.gpus,
    )


def environment(said: dict[str, str], resume_from: Optional[str], cards: dict[str, str]) -> dict[str, str]:
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


def spare_name(record: ClaimRecord) -> str:
    """The name when the plain one is taken."""
    return f"{NAME_PREFIX}{record.task_id}-{record.key.uid.replace('-', '')[:8]}"
