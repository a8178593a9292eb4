"""What a vendor's module has to offer, and what a collection brings back."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol

from runtime.protocol.hardware import Gpu, GpuCapability, GpuCollectFailure, GpuHolder, GpuNote, GpuStats, GpuTopology

FULL = "full"
"""``loss_detection``: a failure names the card."""
BY_ABSENCE = "by_absence"
"""``loss_detection``: cards have a stable key, so one that is missing is known."""
NONE = "none"
"""``loss_detection``: cards have an index only, so a shorter list condemns no card."""

MEMORY_CLASSES_GIB = (
    *(1, 2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 120, 128, 141, 144),
    *(180, 192, 256, 288),
)


class CollectorError(Exception):
    """The collection as a whole failed; the text is what the heartbeat says."""


class NoAnswer(CollectorError):
    """The tool did not run to its end in time: what else it could be asked now would only take as long again."""


@dataclass(frozen=True)
class Cards:
    """One good collection. A card that failed is in ``failures`` and, if it was ever read, still in ``gpus``.

    ``topology`` None: not looked at, or unknown. ``source`` names the tool that answered. ``holders``: which processes
    hold cards, as the tool tells it; None when it cannot tell. ``notes`` condemn nothing. ``tells``: by uuid what only
    this tool says of a card; it stays on this node.
    """

    gpus: list[Gpu]
    stats: list[GpuStats] = field(default_factory=list)
    failures: list[GpuCollectFailure] = field(default_factory=list)
    capabilities: list[GpuCapability] = field(default_factory=list)
    topology: Optional[GpuTopology] = None
    source: str = ""
    holders: Optional[list[GpuHolder]] = None
    notes: list[GpuNote] = field(default_factory=list)
    tells: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Detection:
    """Whether a vendor is here. ``found``: it answers with cards. ``present``: its tool or a card's PCI id is
    here, whether it answers or not; no virtual cards then. ``why`` is a sentence."""

    found: bool
    present: bool
    why: str


class Detector(Protocol):
    """One vendor. Both methods may take long (they have deadlines of their own); neither is called twice at once.

    ``evidence`` is ``fixture`` or ``hardware``.
    """

    vendor: str
    evidence: str

    @property
    def loss_detection(self) -> str:
        """May change: what cards are known by can be told later."""
        ...

    def detect(self) -> Detection: ...

    def collect(self, known: list[Gpu]) -> Cards:
        """Read all cards; ``known`` is the last inventory, to name a card that no longer tells its uuid.

        Raises CollectorError when nothing can be said of any card.
        """
        ...

    def close(self) -> None:
        """Let go of children and handles."""
        ...


def memory_class(total_mib: int) -> int:
    """The size in GiB under which a card is sold: what a card reports lies a little below it."""
    size = total_mib / 1024
    for step in MEMORY_CLASSES_GIB:
        if size <= step + 0.1:
            return step
    return round(size)


def gpu_class(vendor: str, model: Optional[str], memory_total_mib: Optional[int]) -> Optional[str]:
    """``<vendor>-<model slug>-<memory class>g``: ``nvidia-h100-80gb-hbm3-80g``; None without a model.

    The last part is missing when the memory is unknown.
    """
    if not model:
        return None
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    slug = re.sub(rf"^{re.escape(vendor)}-", "", slug)
    parts = [vendor, slug]
    if memory_total_mib:
        parts.append(f"{memory_class(memory_total_mib)}g")
    return "-".join(part for part in parts if part)
