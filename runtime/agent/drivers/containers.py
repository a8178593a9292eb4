"""A container plan as the engine's own ``create`` body. Pure."""

from __future__ import annotations

from typing import Any

from runtime.agent.drivers.driver import ContainerPlan, Mount

MIB = 1 << 20
LOG_FILES = 2


def create_body(plan: ContainerPlan) -> dict[str, Any]:
    """Never privileged, never removed or restarted by the engine, with an init process and bounded logs.

    The image's own health check is switched off: what the task says counts. Memory has no swap on top.
    """
    host: dict[str, Any] = {
        "AutoRemove": False,
        "Privileged": False,
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "NetworkMode": plan.network,
        "LogConfig": {
            "Type": "json-file",
            "Config": {
                "max-size": f"{max(1, plan.log_max_mib * 1024 // LOG_FILES)}k",
                "max-file": str(LOG_FILES),
            },
        },
        # The task's volumes first, in their order.
        "Mounts": [_bind(mount) for mount in (*plan.mounts, *(Mount(place, place, True) for place in plan.shown))],
        **plan.host_config,
    }
    if plan.network == "bridge":
        host["PortBindings"] = {
            f"{container}/tcp": [{"HostPort": str(published or "")}] for container, published in plan.ports
        }
    if plan.memory_mib is not None:
        host["Memory"] = host["MemorySwap"] = plan.memory_mib * MIB
    if plan.cpus is not None:
        host["NanoCpus"] = round(plan.cpus * 1_000_000_000)
    if plan.ipc_host:
        host["IpcMode"] = "host"
    elif plan.shm_mib is not None:
        host["ShmSize"] = plan.shm_mib * MIB
    body: dict[str, Any] = {
        "Image": plan.image,
        # A name without a value takes the image's own value away.
        "Env": [*(f"{name}={value}" for name, value in plan.env.items()), *plan.unset],
        "Labels": plan.labels,
        "ExposedPorts": {f"{container}/tcp": {} for container, _ in plan.ports},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }
    if plan.entrypoint is not None:
        body["Entrypoint"] = plan.entrypoint or [""]  # an empty list would mean the image's own
    if plan.command is not None:
        body["Cmd"] = plan.command
    if plan.workdir is not None:
        body["WorkingDir"] = plan.workdir
    if plan.user is not None:
        body["User"] = plan.user
    return body


def _bind(mount: Mount) -> dict[str, Any]:
    """A source that is not there is refused, not made."""
    return {
        "Type": "bind",
        "Source": mount.source,
        "Target": mount.target,
        "ReadOnly": mount.read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }
