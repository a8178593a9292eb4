"""What has to be right before anything is made: environment, image reference, cards, shared memory, volumes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

from runtime.agent.drivers.driver import Mount
from runtime.agent.drivers.process.sandbox import TargetRefused, check_target, hidden_paths
from runtime.agent.drivers.process.script import SHELLS_OWN
from runtime.agent.drivers.process.users import UserRefused, run_as
from runtime.agent.hardware.giving.description import CardOptions, NotGiven
from runtime.agent.hardware.visibility import Decide, container_options, given, process_options
from runtime.agent.tasks.volumes import Fence, VolumeRejected, numeric_owner
from runtime.protocol.hardware import Gpu
from runtime.protocol.names import ImageReferenceError, is_env_name, parse_image_reference
from runtime.protocol.paths import is_within, target_name
from runtime.protocol.program import program_faults
from runtime.protocol.reasons import Reason
from runtime.protocol.states import Driver, Kind
from runtime.protocol.tasks import VOLUMES_LIMIT, AssignedGpu, TaskSpec

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
    gpus: tuple[Gpu, ...] = ()
    cards: CardOptions = field(default_factory=CardOptions)
    ipc_host: bool = False
    shm_mib: Optional[int] = None
    dropped_env: tuple[str, ...] = ()


def check(
    spec: TaskSpec,
    assigned: tuple[AssignedGpu, ...],
    snapshot: GpuSnapshot,
    settings: AgentSettings,
    engine_root: Optional[str] = None,
    runtimes: Sequence[str] = (),
) -> Checked:
    """All checks, cheapest first. Raises CheckFailed. Makes the folders of volumes that say ``create``. ``runtimes``
    are the engine's.

    The mounts are left out: volumes are admitted once more when they are held for the container.
    """
    if spec.driver is Driver.PROCESS:
        return _check_process(spec, assigned, snapshot, settings)
    image = checked_image(spec.image)
    env, dropped = checked_env(spec.env)
    check_program(spec, env)
    if spec.network == "host" and not settings.allow_host_network:
        raise CheckFailed(Reason.PROFILE_REJECTED, "this node does not allow the host's network (allow_host_network)")
    gpus = checked_gpus(assigned, snapshot)
    cards = checked_giving(gpus, snapshot, runtimes, container_options)
    check_driver_mounts(spec, cards.mounts)
    ipc_host, shm_mib = shared_memory(spec, len(gpus), settings.allow_ipc_host)
    if ipc_host:
        check_host_shm(spec, len(gpus))
    check_volumes(spec, fence_of(settings, engine_root))
    return Checked(
        image=image, env=env, gpus=gpus, cards=cards, ipc_host=ipc_host, shm_mib=shm_mib, dropped_env=dropped
    )


def _check_process(
    spec: TaskSpec, assigned: tuple[AssignedGpu, ...], snapshot: GpuSnapshot, settings: AgentSettings
) -> Checked:
    """What a plain process has to do without: image, ports and shared memory of its own."""
    if not settings.process_driver:
        raise CheckFailed(Reason.ENGINE_UNAVAILABLE, "this node runs no plain processes (process_driver is off)")
    env, dropped = checked_env(spec.env)
    check_program(spec, env)
    for name in SHELLS_OWN:
        if name in env:
            raise CheckFailed(Reason.ENV_INVALID, f"{name} cannot be set for a plain process: a shell keeps it")
    if not settings.allow_host_network:
        raise CheckFailed(Reason.PROFILE_REJECTED, "a plain process has the host's network (allow_host_network)")
    try:
        run_as(spec.user, "", settings.process_allow_root)
    except UserRefused as refused:
        raise CheckFailed(Reason.PROFILE_REJECTED, f"user {spec.user!r}: {refused}") from None
    gpus = checked_gpus(assigned, snapshot)
    cards = checked_giving(gpus, snapshot, (), process_options)
    check_volumes(spec, fence_of(settings, None))
    hidden = hidden_paths(own_places(settings))
    for volume in spec.volumes:
        try:
            check_target(volume.container, hidden)
        except TargetRefused as error:
            raise CheckFailed(Reason.VOLUME_REJECTED, str(error)) from None
    return Checked(image="", env=env, gpus=gpus, cards=cards, dropped_env=dropped)


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
            raise CheckFailed(Reason.ENV_INVALID, f"{name[:80]!a} is not a variable's name")
        pairs[name] = value
    return pairs, tuple(dropped)


def check_program(spec: TaskSpec, env: dict[str, str]) -> None:
    """Words, variables, user and folder that no engine could start; the server says the same before it is stored."""
    for fault in program_faults(spec, env):
        reason = Reason.ENV_INVALID if fault.path.partition(".")[0] == "env" else Reason.PROFILE_REJECTED
        raise CheckFailed(reason, str(fault))


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


def checked_giving(
    gpus: tuple[Gpu, ...], snapshot: GpuSnapshot, runtimes: Sequence[str], decide: Decide
) -> CardOptions:
    """How these cards get to the task. Raises CheckFailed when they cannot, with what is missing."""
    try:
        return given(gpus, snapshot, runtimes, decide)
    except NotGiven as error:
        raise CheckFailed(Reason.GPU_UNAVAILABLE, str(error)) from None


def check_driver_mounts(spec: TaskSpec, mounts: Sequence[str]) -> None:
    """What is shown of the cards' driver lies neither in a volume nor around one: the engine would make its mount point
    in the volume, or the volume's in the driver."""
    for volume in spec.volumes:
        target = target_name(volume.container)
        for place in mounts:
            if is_within(target, place) or is_within(place, target):
                words = f"volume path {volume.container!r}: the driver of the task's cards is shown at {place}"
                raise CheckFailed(Reason.VOLUME_REJECTED, words)


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


def fence_of(settings: AgentSettings, engine_root: Optional[str]) -> Fence:
    """The node's fence: what the settings say, and around what the agent and its engine keep for themselves."""
    own = [*own_places(settings), *([engine_root] if engine_root else [])]
    return Fence(settings.volumes_allow, (*settings.volumes_deny, *own))


def own_places(settings: AgentSettings) -> list[str]:
    """What the agent keeps for itself: its state, its key, the way to its engine."""
    own = [settings.state_dir, settings.api_key_file]
    if settings.docker_host is not None and settings.docker_host.startswith("unix://"):
        own.append(settings.docker_host[len("unix://") :])
    return [place for place in own if place]


def check_volumes(spec: TaskSpec, fence: Fence) -> None:
    """Each volume on its own, and all of them together."""
    if len(spec.volumes) > VOLUMES_LIMIT:
        raise CheckFailed(Reason.VOLUME_REJECTED, f"{len(spec.volumes)} volumes; at most {VOLUMES_LIMIT} are possible")
    targets = set()
    for volume in spec.volumes:
        try:
            fence.admit(volume, numeric_owner(spec.user))
        except VolumeRejected as error:
            raise CheckFailed(Reason.VOLUME_REJECTED, str(error)) from None
        target = target_name(volume.container)
        if target in targets:
            raise CheckFailed(Reason.VOLUME_REJECTED, f"two volumes have the same path in the container: {target!r}")
        targets.add(target)
