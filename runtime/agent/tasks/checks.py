"""What has to be right before anything is made: environment, image reference, cards, shared memory, volumes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

from runtime.agent.drivers.driver import Mount
from runtime.agent.tasks.volumes import Fence, Source, VolumeRejected, numeric_owner
from runtime.protocol.heartbeat import Gpu
from runtime.protocol.names import ImageReferenceError, is_env_name, parse_image_reference
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Driver, Kind
from runtime.protocol.tasks import AssignedGpu, TaskSpec

if TYPE_CHECKING:
    from runtime.agent.hardware.inventory import GpuSnapshot
    from runtime.agent.settings import AgentSettings

SHM_LEAST_MIB = 8192
SHM_A_CARD_MIB = 1024
MIB = 1 << 20


class CheckFailed(Exception):
    """The task cannot run here; ``reason`` and a sentence for its record."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


@dataclass(frozen=True)
class Checked:
    """What the checks found out and the container needs."""

    image: str
    env: dict[str, str] = field(repr=False)
    mounts: tuple[Mount, ...] = ()
    sources: tuple[Source, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    ipc_host: bool = False
    shm_mib: Optional[int] = None
    dropped_env: tuple[str, ...] = ()


def check(spec: TaskSpec, assigned: tuple[AssignedGpu, ...], snapshot: GpuSnapshot, settings: AgentSettings) -> Checked:
    """All checks, cheapest first. Raises CheckFailed. Makes the folders of volumes that say ``create``."""
    if spec.driver is Driver.PROCESS:
        raise CheckFailed(Reason.ENGINE_UNAVAILABLE, "this node runs no plain processes (process_driver is off)")
    image = checked_image(spec.image)
    env, dropped = checked_env(spec.env)
    if spec.network == "host" and not settings.allow_host_network:
        raise CheckFailed(Reason.PROFILE_REJECTED, "this node does not allow the host's network (allow_host_network)")
    gpus = checked_gpus(assigned, snapshot)
    ipc_host, shm_mib = shared_memory(spec, len(gpus), settings.allow_ipc_host)
    if ipc_host:
        check_host_shm(spec, len(gpus))
    mounts, sources = checked_volumes(spec, Fence(settings.volumes_allow, (*settings.volumes_deny, settings.state_dir)))
    return Checked(image, env, mounts, sources, gpus, ipc_host, shm_mib, dropped)


def checked_image(image: Optional[str]) -> str:
    """The reference, refused by its grammar before anybody is asked for it."""
    if not image:
        raise CheckFailed(Reason.PROFILE_REJECTED, "the task names no image, and no engine of this node fits its model")
    try:
        parse_image_reference(image)
    except ImageReferenceError as error:
        raise CheckFailed(Reason.IMAGE_INVALID, f"image {image!r}: {error}") from None
    return image


def checked_env(env: Union[dict[str, str], list[str], None]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The task's variables, and the bare names that were dropped: a bare name would copy the agent's own value."""
    if env is None:
        return {}, ()
    pairs: dict[str, str] = {}
    dropped = []
    for item in env if isinstance(env, list) else [f"{name}={value}" for name, value in env.items()]:
        name, equals, value = item.partition("=")
        if not equals:
            dropped.append(name)
            continue
        if not is_env_name(name):
            raise CheckFailed(Reason.ENV_INVALID, f"{name[:80]!r} is not a variable's name")
        if "\0" in value:
            raise CheckFailed(Reason.ENV_INVALID, f"the value of {name} has a NUL character in it")
        pairs[name] = value
    return pairs, tuple(dropped)


def checked_gpus(assigned: tuple[AssignedGpu, ...], snapshot: GpuSnapshot) -> tuple[Gpu, ...]:
    """The cards as the node knows them now. A card that is not there, or was named as failing, is unavailable."""
    here = {gpu.uuid: gpu for gpu in snapshot.gpus or ()}
    failing = {failure.uuid: failure.reason for failure in snapshot.failures or () if failure.uuid}
    found = []
    for wanted in assigned:
        gpu = here.get(wanted.uuid)
        if gpu is None:
            raise CheckFailed(Reason.GPU_UNAVAILABLE, f"card {wanted.uuid} is not on this node now")
        for uuid in (gpu.uuid, gpu.parent_uuid):
            if uuid in failing:
                raise CheckFailed(Reason.GPU_UNAVAILABLE, f"card {uuid} fails: {failing[uuid]}")
        found.append(gpu)
    return tuple(found)


def shared_memory(spec: TaskSpec, cards: int, allow_ipc_host: bool) -> tuple[bool, Optional[int]]:
    """(the host's shared memory, else the size of its own in MiB; None: the engine's default)."""
    if spec.ipc_host:
        if not allow_ipc_host:
            raise CheckFailed(Reason.PROFILE_REJECTED, "this node does not allow the host's IPC (allow_ipc_host)")
        return True, None
    if spec.shm_mib is not None or cards < 2 or spec.kind is Kind.JOB:
        return False, spec.shm_mib
    if allow_ipc_host and spec.ipc_host is None:
        return True, None
    return False, wanted_shm_mib(cards)


def wanted_shm_mib(cards: int) -> int:
    """What several cards need to talk to each other."""
    return max(SHM_LEAST_MIB, SHM_A_CARD_MIB * cards)


def check_host_shm(spec: TaskSpec, cards: int, place: Path = Path("/dev/shm")) -> None:  # noqa: S108 (a look, no file)
    wanted = spec.shm_mib if spec.shm_mib is not None else wanted_shm_mib(cards) if cards > 1 else 0
    try:
        found = os.statvfs(place)
    except OSError as error:
        raise CheckFailed(Reason.SHM_TOO_SMALL, f"the host's {place} cannot be looked at: {error.strerror}") from None
    free = found.f_bavail * found.f_frsize // MIB
    if free < wanted:
        raise CheckFailed(
            Reason.SHM_TOO_SMALL, f"the host's {place} has {free} MiB free, {wanted} MiB are wanted for {cards} cards"
        )


def checked_volumes(spec: TaskSpec, fence: Fence) -> tuple[tuple[Mount, ...], tuple[Source, ...]]:
    mounts, sources = [], []
    for volume in spec.volumes:
        try:
            source = fence.admit(volume, numeric_owner(spec.user))
        except VolumeRejected as error:
            raise CheckFailed(Reason.VOLUME_REJECTED, str(error)) from None
        mounts.append(Mount(source.path, volume.container, volume.read_only))
        sources.append(source)
    return tuple(mounts), tuple(sources)


def free_mib(path: str) -> Optional[int]:
    """Free space at ``path`` in MiB; None when it cannot be looked at."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize // MIB
