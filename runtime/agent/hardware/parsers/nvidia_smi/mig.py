"""What ``nvidia-smi -mig`` and ``nvidia-smi mig ...`` print: the mode's change, instances made and destroyed, those
there are, profiles and placements. Profiles' ids differ by model, so their names are always told beside them."""

from __future__ import annotations

import re
from typing import Any

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.values import number, whole

_CREATED_GI = re.compile(
    r"Successfully created GPU instance ID\s+(?P<gi>\d{1,9}) on GPU\s+(?P<gpu>\d{1,9}) using profile "
    r"(?:MIG )?(?P<profile>\S+) \(ID\s+(?P<profile_id>\d{1,9})\)"
)
_CREATED_CI = re.compile(
    r"Successfully created compute instance ID\s+(?P<ci>\d{1,9}) on GPU\s+(?P<gpu>\d{1,9}) "
    r"GPU instance ID\s+(?P<gi>\d{1,9}) using profile (?:MIG )?(?P<profile>\S+) \(ID\s+(?P<profile_id>\d{1,9})\)"
)
_DESTROYED_GI = re.compile(r"Successfully destroyed GPU instance ID\s+(?P<gi>\d{1,9}) from GPU\s+(?P<gpu>\d{1,9})")
_DESTROYED_CI = re.compile(
    r"Successfully destroyed compute instance ID\s+(?P<ci>\d{1,9}) from GPU\s+(?P<gpu>\d{1,9}) "
    r"GPU instance ID\s+(?P<gi>\d{1,9})"
)
_PLACEMENT = re.compile(
    r"GPU\s+(?P<gpu>\d{1,9})\s+Profile ID\s+(?P<profile_id>\d{1,9})\s+Placements?\s*:"
    r"\s*\{(?P<starts>[\d,\s]*)\}:(?P<size>\d{1,9})"
)
_MODE = re.compile(
    r"(?:(?P<done>Enabled|Disabled) MIG Mode for GPU|(?P<failed>Unable to (?:en|dis)able) MIG Mode for GPU|"
    r"Warning: MIG mode is in pending (?P<pending>\w+) state for GPU)\s+"
    r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])",
    re.IGNORECASE,
)
_INSTANCE = re.compile(
    r"(?P<gpu>\d{1,9})\s+MIG (?P<profile>\S+)\s+(?P<profile_id>\d{1,9})\s+(?P<gi>\d{1,9})"
    r"\s+(?P<start>\d{1,9}):(?P<size>\d{1,9})"
)
_COMPUTE = re.compile(
    r"(?P<gpu>\d{1,9})\s+(?P<gi>\d{1,9})\s+MIG (?P<profile>\S+)\s+(?P<profile_id>\d{1,9})\*?\s+(?P<ci>\d{1,9})"
    r"\s+(?P<start>\d{1,9}):(?P<size>\d{1,9})"
)
_NOTHING = re.compile(r"(?P<none>No MIG-enabled devices found|No (?P<kind>GPU|compute) instances found)\b.*", re.I)
_PROFILE_START = re.compile(r"(?P<gpu>\d{1,9})\s+MIG (?P<name>\S+)\s+(?P<rest>\S.*)")


def read(arguments: list[str], lines: list[str]) -> dict[str, Any]:
    """Keys for a reading's ``more``, each only where the text (or the command) is about it."""
    text = "\n".join(lines)
    more: dict[str, Any] = {}
    creating = {"-cgi", "-cci", "--create-gpu-instance", "--create-compute-instance"}.intersection(arguments)
    destroying = {"-dgi", "-dci", "--destroy-gpu-instance", "--destroy-compute-instance"}.intersection(arguments)
    if creating or re.search(r"(?:Successfully created|Unable to create a) (?:GPU|compute) instance", text):
        more["created"] = {"gi": _all(_CREATED_GI, lines), "ci": _all(_CREATED_CI, lines)}
    if destroying or re.search(r"(?:Successfully destroyed|Unable to destroy) (?:GPU|compute) instance", text):
        more["destroyed"] = {"gi": _all(_DESTROYED_GI, lines), "ci": _all(_DESTROYED_CI, lines)}
    more.update(_changes(arguments, lines))
    placements = [
        {
            "gpu": int(match["gpu"]),
            "profile_id": int(match["profile_id"]),
            "starts": [int(start) for start in match["starts"].split(",") if re.fullmatch(r"\s*\d{1,9}\s*", start)],
            "size": int(match["size"]),
        }
        for match in (_PLACEMENT.fullmatch(line.strip()) for line in lines)
        if match is not None
    ]
    if placements:
        more["placements"] = _once(placements)
    more.update(_lists(arguments, lines))
    return more


def _all(pattern: re.Pattern[str], lines: list[str]) -> list[dict[str, Any]]:
    return _once([_numbers(match) for match in (pattern.fullmatch(line.strip()) for line in lines) if match])


def _numbers(match: re.Match[str]) -> dict[str, Any]:
    order = ("gpu", "gi", "ci", "profile", "profile_id", "start", "size")
    groups = match.groupdict()
    return {key: groups[key] if key == "profile" else int(groups[key]) for key in order if key in groups}


def _once(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for at, entry in enumerate(found) if entry not in found[:at]]


def _changes(arguments: list[str], lines: list[str]) -> dict[str, Any]:
    """``mig_change`` of one card, or ``mig_changes`` of several. ``All done.`` proves nothing: it follows a change
    that is only pending, too."""
    asked = [argument for flag, argument in zip(arguments, arguments[1:]) if flag in ("-mig", "--multi-instance-gpu")]
    requested = {"1": "enable", "0": "disable", "ENABLED": "enable", "DISABLED": "disable"}.get("".join(asked).upper())
    changes: dict[str, dict[str, Any]] = {}
    for line in lines:
        match = _MODE.match(line.strip())
        if match is None:
            continue
        words = (match["done"] or match["failed"] or match["pending"]).lower()
        changes[match["bus"]] = {
            "requested": requested or ("disable" if "disable" in words else "enable"),
            "in_force": match["done"] is not None,
            "pending": match["pending"] is not None,
            "bus_id": match["bus"],
        }
    found = list(changes.values())
    if len(found) > 1:
        return {"mig_changes": found}
    return {"mig_change": found[0]} if found else {}


def _lists(arguments: list[str], lines: list[str]) -> dict[str, Any]:
    instances: list[dict[str, Any]] = []
    computes: list[dict[str, Any]] = []
    profiles: dict[tuple[int, int], dict[str, Any]] = {}
    found: dict[str, Any] = {}
    labels: list[list[str]] = []
    last: dict[str, Any] = {}
    for line in lines:
        nothing = _NOTHING.fullmatch(line.strip())
        if nothing is not None:
            compute = (nothing["kind"] or "").lower() == "compute" or "-lci" in arguments
            found["compute_instances" if compute else "instances"] = []
        cells = tables.cells(line)
        if not cells or len(cells) != 1 or not line.endswith("|"):
            continue
        row = cells[0]
        for title, key in (("GPU instances:", "instances"), ("Compute instances:", "compute_instances")):
            if row.startswith(title):
                found.setdefault(key, instances if key == "instances" else computes)
        if row.startswith("GPU instance profiles:"):
            found["profiles"], labels, last = [], [], {}
        if "instances" in found and _INSTANCE.fullmatch(row):
            instances += [entry for entry in _matches(_INSTANCE, row) if entry not in instances]
        elif "compute_instances" in found and _COMPUTE.fullmatch(row):
            computes += [entry for entry in _matches(_COMPUTE, row) if entry not in computes]
        elif "profiles" in found:
            start = _PROFILE_START.fullmatch(row)
            if start is not None and labels:
                last = _profile(labels[0], start)
                profiles.setdefault((last["gpu"], last["id"]), last)
                last = profiles[last["gpu"], last["id"]]
            elif last and labels:
                last.update(_counts(labels[-1], row))
            elif re.match(r"GPU\s+Name|Free/Total", row) and len(labels) < 2:
                labels.append(row.replace("/", " ").split() if row.startswith("Free") else row.split())
    if "profiles" in found:
        found["profiles"] = list(profiles.values())
    return found


def _matches(pattern: re.Pattern[str], row: str) -> list[dict[str, Any]]:
    match = pattern.fullmatch(row)
    return [] if match is None else [_numbers(match)]


def _profile(labels: list[str], start: re.Match[str]) -> dict[str, Any]:
    """The first line of a profile: after the name, cells stand in the order of the labels; where there are more or
    fewer, nobody can tell which is which."""
    profile: dict[str, Any] = {"gpu": int(start["gpu"]), "name": start["name"], "id": None}
    cells = start["rest"].split()
    for label, cell in zip(labels[2:], cells) if len(cells) == len(labels) - 2 else ():
        key = label.lower()
        if key == "instances":
            free, _, total = cell.partition("/")
            profile.update(free=whole(free), total=whole(total))
        elif key == "memory":
            profile["memory_gib"] = number(cell)
        elif key == "p2p":
            continue
        else:
            profile[key] = whole(cell)
    return profile


def _counts(labels: list[str], row: str) -> dict[str, Any]:
    """The second line: engines under the labels at the end of the header's second line."""
    cells = row.split()
    if not cells or not all(re.fullmatch(r"\d{1,9}", cell) for cell in cells):
        return {}
    return {label.lower(): int(cell) for label, cell in zip(labels[-len(cells) :], cells)}
