"""What nvidia-smi's words say of one card, in whatever form they are printed.

Only words in place of a value condemn: a lone ``ERR!`` or ``[Unknown Error]`` in a sensor cell is a value unread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional

from runtime.agent.hardware.pci import normal_bus_id
from runtime.agent.hardware.reading import BAD, WARNING, Blame, CardReading, Complaint
from runtime.agent.hardware.values import word

ERR_NAME = "ERR! in place of its name"

_CONDEMNING = (
    ("gpu is lost", "GPU is lost", "gpu_lost"),
    ("gpu requires reset", "GPU requires reset", "reset_required"),
)
_UUID = re.compile(r"(?:GPU|MIG)-\S+")


@dataclass(frozen=True)
class Verdict:
    """``raw``: the tool's words; ``failure``: what condemns the card; ``kind``: that of the complaint."""

    health: Optional[str] = None
    raw: Optional[str] = None
    failure: Optional[str] = None
    kind: Optional[str] = None

    def complaints(self, card: CardReading) -> list[Complaint]:
        """The error that the words are for the whole text; a name that is no name is none."""
        if self.kind is None or self.raw is None:
            return []
        return [Complaint(self.raw, self.kind, (Blame(card.index, card.bus_id),))]


def verdict(name: Optional[str], uuid: Optional[str], values: Iterable[Optional[str]]) -> Verdict:
    """Of a card whose name and uuid are printed as ``name`` and ``uuid`` among ``values``."""
    bare = {(value or "").strip().strip("[]").lower() for value in values}
    for words, text, kind in _CONDEMNING:
        if any(value.startswith(words) for value in bare):
            return Verdict(BAD, text, text, kind)
    if (name or "").strip() == "ERR!":
        return Verdict(BAD, "ERR!", ERR_NAME)
    if "unknown error" in [(value or "").strip().strip("[]").lower() for value in (name, uuid)]:
        return Verdict(BAD, "Unknown Error", "unknown error for its handle", "device_handle")
    return Verdict()


def remap_verdict(rows: dict[str, Any]) -> Verdict:
    """Rows that wait for a reset to be remapped, or could not be, are a warning: the card still answers."""
    if rows["failure"] is True:
        return Verdict(WARNING, "Remapped Rows: Remapping Failure Occurred Yes")
    if rows["pending"] is True:
        count = "" if rows["uncorrectable"] is None else f"Uncorrectable Error {rows['uncorrectable']}, "
        return Verdict(WARNING, f"Remapped Rows: {count}Pending Yes")
    return Verdict()


def uuid_of(text: Optional[str]) -> Optional[str]:
    """The uuid in a cell; None for everything that does not begin as NVIDIA's do."""
    found = word(text)
    return found if found is not None and _UUID.fullmatch(found) else None


def is_bus_id(text: Optional[str]) -> bool:
    """Whether a cell is a PCI address, and nothing else."""
    return re.fullmatch(r"[0-9A-Fa-f:.]{7,16}", text or "") is not None and normal_bus_id(text) is not None


def mig_mode(text: Optional[str]) -> Optional[str]:
    """``Enabled``, ``Disabled``, or with a star while the mode waits for a reset; None where there is no MIG."""
    found = word(text)
    return found if found is not None and re.fullmatch(r"(?:en|dis)abled\*?", found, re.IGNORECASE) else None


def yes(text: Optional[str]) -> Optional[bool]:
    """True and False for yes and no (and 1 and 0); None for everything else."""
    return {"yes": True, "1": True, "no": False, "0": False}.get((text or "").strip().lower())


def mig_memory(slices: list[dict[str, Any]]) -> dict[str, Any]:
    """``mig_memory_sum_mib`` over GPU instances, MiB: compute instances of one print the same memory again. Nothing
    when there is none, or one does not tell its memory."""
    instances = {(part["gpu"], part["gi"]): part for part in slices if part.get("gi") is not None}
    figures = [(part.get("memory_used_mib"), part.get("memory_total_mib")) for part in instances.values()]
    used = [used for used, _ in figures if used is not None]
    total = [total for _, total in figures if total is not None]
    if not figures or len(used) < len(figures) or len(total) < len(figures):
        return {}
    return {"mig_memory_sum_mib": {"used": sum(used), "total": sum(total)}}
