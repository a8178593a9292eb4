"""``nvidia-smi -L`` and ``nvidia-smi --version``."""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers.nvidia_smi import verdicts
from runtime.agent.hardware.reading import CardReading, Complaint, Reading

_GPU = re.compile(r"GPU (?P<index>\d{1,9}): (?P<name>.+?) \(UUID: (?P<uuid>[^\s()]+)\)")
_MIG = re.compile(r"\s*MIG (?P<profile>\S+)\s+Device\s+(?P<dev>\d{1,9}): \(UUID: (?P<uuid>[^\s()]+)\)")
_VERSION = re.compile(r"(?P<what>NVIDIA-SMI|NVML|DRIVER|KMD|CUDA(?: UMD)?) version\s*:\s*(?P<version>\d[\w.]*)", re.I)
_NVML = re.compile(r"NVML (?:library )?version\s*:\s*(\d[\w.]*)", re.IGNORECASE)


def read(lines: list[str]) -> Optional[Reading]:
    """Cards with their uuids, and the MIG devices listed under each; None when no line is of ``-L``."""
    cards: dict[int, CardReading] = {}
    slices: dict[tuple[int, int], dict[str, Any]] = {}
    errors: list[Complaint] = []
    for line in lines:
        gpu, part = _GPU.fullmatch(line.strip()), _MIG.fullmatch(line)
        if gpu is not None:
            index, name, uuid = int(gpu["index"]), gpu["name"], gpu["uuid"]
            verdict = verdicts.verdict(name, None, [name])
            cards[index] = CardReading(
                index=index,
                name=None if verdict.health else name,
                uuid=verdicts.uuid_of(uuid),
                health=verdict.health,
                health_raw=verdict.raw,
                failure=verdict.failure,
            )
            errors += [complaint for complaint in verdict.complaints(cards[index]) if complaint not in errors]
        elif part is not None and cards:
            index, dev = list(cards)[-1], int(part["dev"])
            found = {"gpu": index, "dev": dev, "profile": part["profile"], "uuid": verdicts.uuid_of(part["uuid"])}
            slices[index, dev] = found
    if not cards:
        return None
    more = {"mig_devices": list(slices.values())} if slices else {}
    return Reading(list(cards.values()), len(cards), errors, more=more)


def versions(lines: list[str]) -> Optional[Reading]:
    """What ``--version`` prints; also the version of the library in an error's second line."""
    found: dict[str, str] = {}
    for line in lines:
        match = _VERSION.fullmatch(line.strip())
        if match is not None:
            found[match["what"].upper()] = match["version"]
    more: dict[str, Any] = {}
    cuda = found.get("CUDA UMD", found.get("CUDA"))
    if cuda is not None:
        more["cuda_version"] = cuda
    if not found:
        return None
    return Reading(driver_version=found.get("KMD", found.get("DRIVER")), more=more)


def nvml_version(lines: list[str]) -> Optional[str]:
    """``NVML version`` or ``NVML library version``, wherever it stands."""
    matches = [match for match in (_NVML.fullmatch(line.strip()) for line in lines) if match is not None]
    return matches[-1].group(1) if matches else None
