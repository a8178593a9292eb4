"""The second pass over a task as sent: what no type says.

:func:`check` is pure. It finds every fault and every warning at once, and returns the spec in the form that is
stored: env as a mapping, the vendor filled in.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from runtime.protocol.engines import AUTO, ENGINES, engine_kind
from runtime.protocol.names import ImageReferenceError, is_env_name, parse_image_reference
from runtime.protocol.paths import WANTED, WANTED_TARGET, is_within, path_fault, target_fault, target_name
from runtime.protocol.problems import Fault
from runtime.protocol.program import program_faults
from runtime.protocol.states import Driver, Kind
from runtime.protocol.tasks import TaskSpec, TaskWarning

LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)
"""A label's name."""
LABEL_VALUE = re.compile(r"[^\x00-\x1f]{0,200}")

VENDOR_FAULT = "gpus.vendor"
FRAMEWORKS = ("auto", "megatron", "deepspeed", "tensorflow", "pytorch", "transformers", "marker")
TRAINING_STARTS = 3


@dataclass(frozen=True)
class Checked:
    """``spec`` is ready to be stored when ``faults`` is empty."""

    spec: TaskSpec
    faults: list[Fault]
    warnings: list[TaskWarning]

    @property
    def only_vendor_missing(self) -> bool:
        """Whether the one thing wrong is that the fleet has several vendors and the task names none."""
        return [fault.path for fault in self.faults] == [VENDOR_FAULT] and self.faults[0].found == "nothing"


def check(spec: TaskSpec, fleet_vendors: Collection[str], default_vendor: str | None) -> Checked:
    """Judge ``spec`` on its own and against the vendors whose cards the fleet has now (virtual ones excluded)."""
    env, env_faults, warnings = _env(spec)
    vendor, vendor_faults = _vendor(spec, fleet_vendors, default_vendor)
    faults = [
        *_program(spec),
        *env_faults,
        *program_faults(spec, env or {}),
        *_volumes(spec),
        *_ports(spec),
        *_cards(spec),
        *vendor_faults,
        *_starts(spec),
        *_labels(spec),
    ]
    warnings.extend(_odd(spec))
    gpus = spec.gpus
    if gpus is not None and vendor is not None:
        gpus = dataclasses.replace(gpus, vendor=vendor)
    return Checked(dataclasses.replace(spec, env=env, gpus=gpus), faults, warnings)


def starts_allowed(spec: TaskSpec) -> int:
    """How often the task may be started: as asked, else 3 for training and 1 for the rest."""
    if spec.max_attempts is not None:
        return spec.max_attempts
    return TRAINING_STARTS if spec.kind is Kind.TRAINING else 1


def _program(spec: TaskSpec) -> Iterator[Fault]:
    if spec.driver is Driver.PROCESS:
        if not spec.command and not spec.entrypoint:
            yield Fault("command", "nothing", "a command (the process driver runs it without an image)")
        if spec.image is not None:
            yield Fault("image", repr(spec.image), "no image with driver process")
        for member in ("registry_auth", "shm_mib", "ipc_host"):
            if getattr(spec, member) is not None:
                yield Fault(member, "a value", "nothing with driver process")
        return
    if spec.image is None:
        if spec.kind is Kind.INFERENCE:
            if spec.model is None:
                yield Fault("image", "neither image nor model", "an image, or a model for the node's engine router")
            if spec.engine != AUTO and engine_kind(spec.engine) is None:
                known = ", ".join(kind.name for kind in ENGINES)
                yield Fault("engine", repr(spec.engine), f"{AUTO}, or one of {known}")
        else:
            yield Fault("image", "nothing", f"an image (kind {spec.kind.value}, driver docker)")
        return
    try:
        parse_image_reference(spec.image)
    except ImageReferenceError as error:
        yield Fault("image", repr(spec.image), f"[registry/]repository[:tag][@digest]; {error}")


def _env(spec: TaskSpec) -> tuple[dict[str, str] | None, list[Fault], list[TaskWarning]]:
    if spec.env is None:
        return None, [], []
    faults: list[Fault] = []
    warnings: list[TaskWarning] = []
    pairs: list[tuple[str, str, str]] = []
    if isinstance(spec.env, dict):
        pairs = [(name, value, "env") for name, value in spec.env.items()]
    else:
        for number, item in enumerate(spec.env):
            name, equals, value = item.partition("=")
            if equals:
                pairs.append((name, value, f"env.{number}"))
            else:
                # A bare name would copy the value of the agent's own environment into the container.
                shown = name if is_env_name(name) else "an item that is not shown"
                warnings.append(TaskWarning("env_bare_name", f"env.{number}: {shown} has no '=' and was dropped"))
    env: dict[str, str] = {}
    for name, value, path in pairs:
        if not is_env_name(name):
            # The text before '=' may be part of a secret that was pasted in the wrong place.
            shown = repr(name) if isinstance(spec.env, dict) and len(name) <= 60 else "a name that is not shown"
            faults.append(Fault(path, shown, "a name of letters, digits and '_' that does not begin with a digit"))
        elif name in env:
            faults.append(Fault(path, f"{name} twice", "each name once"))
        else:
            env[name] = value
    return env, faults, warnings


def _path_fault(where: str, path: str) -> Fault | None:
    fault = path_fault(path) or ("has '..' in it" if ".." in path.split("/") else None)
    return None if fault is None else Fault(where, f"a path that {fault}: {path[:80]!a}", WANTED)


def _volumes(spec: TaskSpec) -> Iterator[Fault]:
    targets: set[str] = set()
    for number, volume in enumerate(spec.volumes):
        fault = _path_fault(f"volumes.{number}.host", volume.host)
        if fault is not None:
            yield fault
        target, words = target_name(volume.container), target_fault(volume.container)
        if words is not None:
            shown = f"a path that {words}: {volume.container[:80]!a}"
            yield Fault(f"volumes.{number}.container", shown, WANTED_TARGET)
        elif target in targets:
            yield Fault(f"volumes.{number}.container", repr(target), "a path that no other volume has")
        targets.add(target)
    if spec.checkpoint_path is not None:
        fault = _path_fault("checkpoint_path", spec.checkpoint_path)
        inside = target_name(spec.checkpoint_path)
        if fault is not None:
            yield fault
        elif not any(is_within(inside, target) for target in targets):
            yield Fault("checkpoint_path", repr(spec.checkpoint_path), "a path inside one of the volumes' containers")
    if spec.checkpoint_framework not in FRAMEWORKS:
        yield Fault("checkpoint_framework", repr(spec.checkpoint_framework), "one of " + ", ".join(FRAMEWORKS))


def _ports(spec: TaskSpec) -> Iterator[Fault]:
    inside: set[int] = set()
    outside: set[int] = set()
    for number, port in enumerate(spec.ports):
        if port.container in inside:
            yield Fault(f"ports.{number}.container", str(port.container), "each container port once")
        inside.add(port.container)
        if spec.network == "host" and port.host not in (None, port.container):
            yield Fault(f"ports.{number}.host", str(port.host), "the container's own port with network host")
        if port.host is not None and port.host in outside:
            yield Fault(f"ports.{number}.host", str(port.host), "each host port once")
        outside.add(port.host or 0)


def _cards(spec: TaskSpec) -> Iterator[Fault]:
    gpus = spec.gpus
    if gpus is None:
        return
    if gpus.slice is not None and gpus.mps:
        yield Fault("gpus", "slice and mps", "one of them")
    if gpus.same_nvlink_domain and (gpus.slice is not None or gpus.mps):
        yield Fault("gpus.same_nvlink_domain", "true with slice or mps", "whole cards for an NVLink domain")
    if gpus.mps and gpus.vendor not in (None, "nvidia"):
        yield Fault("gpus.mps", f"true with vendor {gpus.vendor!r}", "vendor nvidia")
    if gpus.uuids is not None:
        if len(set(gpus.uuids)) != len(gpus.uuids):
            yield Fault("gpus.uuids", "a uuid twice", "each uuid once")
        if len(gpus.uuids) != gpus.count:
            yield Fault("gpus.uuids", f"{len(gpus.uuids)} uuids with count {gpus.count}", "as many uuids as count")
        for number, uuid in enumerate(gpus.uuids):
            if not 1 <= len(uuid) <= 200:
                yield Fault(f"gpus.uuids.{number}", f"{len(uuid)} characters", "1 to 200 characters")


def _vendor(
    spec: TaskSpec, fleet_vendors: Collection[str], default_vendor: str | None
) -> tuple[str | None, list[Fault]]:
    gpus = spec.gpus
    if gpus is None or gpus.vendor is not None:
        return (gpus.vendor if gpus is not None else None), []
    if gpus.model is not None or gpus.gpu_class is not None or gpus.uuids is not None:
        return None, []
    engine = engine_kind(spec.engine) if spec.image is None else None
    if engine is not None and engine.vendor is not None:
        return engine.vendor, []
    if default_vendor is not None:
        return default_vendor, []
    if len(fleet_vendors) > 1:
        known = ", ".join(sorted(fleet_vendors))
        return None, [Fault(VENDOR_FAULT, "nothing", f"one of the fleet's vendors: {known}")]
    return next(iter(fleet_vendors), None), []


def _starts(spec: TaskSpec) -> Iterator[Fault]:
    if spec.on_node_lost == "reschedule" and starts_allowed(spec) == 1:
        yield Fault("max_attempts", "1 with on_node_lost reschedule", "at least 2, or on_node_lost wait or fail")


def _labels(spec: TaskSpec) -> Iterator[Fault]:
    for member in ("labels", "node_selector"):
        for name, value in getattr(spec, member).items():
            if LABEL.fullmatch(name) is None:
                yield Fault(member, repr(name[:80]), "names of letters, digits, '.', '_', '-' and '/', at most 63")
            elif LABEL_VALUE.fullmatch(value) is None:
                yield Fault(f"{member}.{name}", f"{len(value)} characters", "at most 200 printable characters")


def _odd(spec: TaskSpec) -> Iterator[TaskWarning]:
    if spec.start_timeout_s is not None and spec.health is None:
        yield TaskWarning("start_timeout_without_health", "start_timeout_s has no effect without a health probe")
    if spec.checkpoint_path is not None and _read_only(spec, target_name(spec.checkpoint_path)):
        text = "checkpoint_path is in a volume that is read_only: the task can go on from it, and save nothing"
        yield TaskWarning("checkpoint_read_only", text)
    if spec.kind is not Kind.INFERENCE and spec.model is not None and spec.image is not None:
        yield TaskWarning("model_ignored", f"model is only looked at for inference, not for kind {spec.kind.value}")
    if spec.health is not None and spec.network == "bridge":
        published = {port.container for port in spec.ports}
        if published and spec.health.port not in published:
            yield TaskWarning("health_port_unpublished", f"health.port {spec.health.port} is not among ports")


def _read_only(spec: TaskSpec, path: str) -> bool:
    """Whether the innermost volume around ``path`` is one that cannot be written to."""
    around = [volume for volume in spec.volumes if is_within(path, target_name(volume.container))]
    return bool(around) and max(around, key=lambda volume: len(target_name(volume.container))).read_only
