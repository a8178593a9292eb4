"""What nvidia-smi says went wrong: its sentences, their kind, and the card they name. Sentences as the tool prints
them, collected from public issues and NVIDIA's manual page of nvidia-smi."""

from __future__ import annotations

import re
from typing import Optional

from runtime.agent.hardware.reading import Blame, Complaint

NO_DEVICES = "No devices were found"

_BUS = r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"

_HANDLE = re.compile(
    r"Unable to determine the device handle for GPU\s*(?P<index>\d{1,9}(?=:\s))?:?\s*"
    + _BUS
    + r"?\s*:\s*(?P<reason>.+)",
    re.IGNORECASE,
)
"""Both ``GPU 0000:4C:00.0: ...`` and ``GPU0000:4C:00.0: ...`` name the bus; ``GPU0: 0000:4C:00.0: ...`` both."""

_SENTENCES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"Failed to initialize NVML:\s*(?P<reason>.+)",
        r"NVIDIA-SMI has failed because (?:it )?(?P<reason>.+?)(?:\.\s.*|\.)?$",
        r"NVIDIA-SMI (?P<reason>couldn't find .+?)(?:\.\s.*|\.)?$",
        # Also as people retell it.
        r".*?(?P<reason>(?:couldn['’]t|could not|cannot|can['’]t) communicate with the NVIDIA driver)(?:[^\w].*)?",
        rf"(?P<reason>{NO_DEVICES})",
        r"(?P<reason>Field \".*?\" is not a valid field to query)\.?",
        r"Warning: MIG mode is in pending \w+ state for GPU\s+" + _BUS + r"\s*:\s*(?P<reason>.+)",
        r"Unable to (?:en|dis)able MIG Mode for GPU\s+" + _BUS + r"\s*:\s*(?P<reason>.+)",
        r"Unable to create a GPU instance on GPU\s+(?P<index>\d{1,9})\s+using profile\s+(?P<profile>\d{1,9})\s*:(?!\d)"
        r"\s*(?P<reason>.+)",
        r"Unable to create a compute instance on GPU\s+(?P<index>\d{1,9})\b.*?:\s*(?P<reason>.+)",
        r"Unable to destroy (?:GPU|compute) instance ID\s+\d+ from GPU\s+(?P<index>\d{1,9})\b.*?:\s*(?P<reason>.+)",
        r".*nvidia-smi\S*:\s*(?P<reason>(?:command )?not found)",
        r"Command 'nvidia-smi' (?P<reason>not found).*",
        r".*\"nvidia-smi\"\s*:\s*(?P<reason>executable file not found.*)",
    )
)
_SUMMARY = re.compile(
    r"Failed to (?:create|destroy|enable|disable) (?:GPU|compute|MIG)\b[^:]*:\s*(?P<reason>.+)", re.IGNORECASE
)
_KINDS = (
    ("gpu is lost", "gpu_lost"),
    ("requires reset", "reset_required"),
    ("version mismatch", "version_mismatch"),
    ("communicate with the nvidia driver", "driver_not_loaded"),
    ("driver not loaded", "driver_not_loaded"),
    ("blocked by the operating system", "os_blocked"),
    ("in use by another client", "in_use"),
    ("insufficient resources", "insufficient_resources"),
    ("uninitialized", "not_initialized"),
    (NO_DEVICES.lower(), "no_devices"),
    ("not found", "tool_missing"),
)


def chosen_gpu(arguments: list[str]) -> Optional[int]:
    """The one card that ``-i N`` or ``--id=N`` asks for; None for several, for bus ids and uuids."""
    for at, argument in enumerate(arguments):
        value: Optional[str] = None
        if argument in ("-i", "--id") and at + 1 < len(arguments):
            value = arguments[at + 1]
        elif argument.startswith("--id="):
            value = argument[len("--id=") :]
        if value is not None and re.fullmatch(r"\d{1,9}", value):
            return int(value)
    return None


def complaints(arguments: list[str], lines: list[str]) -> list[Complaint]:
    """All errors in the text, each once. A summary at the end of a batch counts only when nothing else was said."""
    found: list[Complaint] = []
    for line in lines:
        complaint = _complaint(arguments, line.strip())
        if complaint is not None and complaint not in found:
            found.append(complaint)
    if not found:
        for line in lines:
            match = _SUMMARY.fullmatch(line.strip())
            if match is not None:
                found.append(Complaint(match["reason"].strip(), _kind(match["reason"])))
                break
    return found


def _complaint(arguments: list[str], line: str) -> Optional[Complaint]:
    match = _HANDLE.search(line)
    if match is not None:
        reason = match["reason"].strip()
        return Complaint(reason, _kind(reason, "device_handle"), _blamed(match, None))
    for sentence in _SENTENCES:
        match = sentence.fullmatch(line)
        if match is None:
            continue
        reason = match["reason"].strip()
        if line.lower().startswith("failed to initialize nvml") and reason.lower() == "unknown error":
            return Complaint(reason, "nvml_unknown")
        asked = chosen_gpu(arguments) if "bus" in match.groupdict() else None
        return Complaint(reason, _kind(reason), _blamed(match, asked))
    return None


def _blamed(match: re.Match[str], asked: Optional[int]) -> tuple[Blame, ...]:
    groups = match.groupdict()
    index = groups.get("index")
    profile = groups.get("profile")
    blame = Blame(
        index=asked if index is None else int(index),
        bus_id=groups.get("bus"),
        profile_id=None if profile is None else int(profile),
    )
    return () if blame == Blame() else (blame,)


def _kind(reason: str, otherwise: Optional[str] = None) -> Optional[str]:
    return next((kind for words, kind in _KINDS if words in reason.lower()), otherwise)
