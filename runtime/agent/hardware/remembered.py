"""The cards that the agent has known here, also those that are gone: kept in its state folder, over restarts.

A card that is gone from a good list is kept apart until it comes back, another one has its place, or it was gone for a
week: then it was taken out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.cards import numbered
from runtime.protocol.codec import WireError, decode, encode
from runtime.protocol.hardware import Gpu

FILE = "hardware.json"
KEPT_S = 7 * 24 * 3600.0
"""As long as the control plane looks for a card that is gone."""


class CannotRead(Exception):
    """The file is there and says nothing that can be used, or not to this user; the text says why."""


@dataclass(frozen=True)
class GoneCard:
    """``since``: seconds since the epoch."""

    gpu: Gpu
    since: float


@dataclass(frozen=True)
class Remembered:
    """``vendors``: those that were once found; ``gpus``: the last list; ``gone``: known before, and not in it."""

    vendors: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gone: tuple[GoneCard, ...] = ()

    def after(self, gpus: Sequence[Gpu], vendors: Sequence[str], now: float) -> Remembered:
        """With a newer list of the cards of ``vendors``; those of others are not this node's any more."""
        return Remembered(tuple(vendors), tuple(gpus), self._gone(gpus, vendors, now))

    def _gone(self, gpus: Sequence[Gpu], vendors: Sequence[str], now: float) -> tuple[GoneCard, ...]:
        whole = [gpu for gpu in gpus if gpu.parent_uuid is None]
        listed = {gpu.uuid for gpu in whole}
        before = [one for one in self.gone if now - one.since < KEPT_S]
        before += [GoneCard(gpu, now) for gpu in self.gpus if gpu.parent_uuid is None]
        before = [one for one in before if one.gpu.vendor in vendors]
        known = {one.gpu.uuid for one in before}
        # Another card has its place, or the same one another name by now.
        replaced = {gpu.pci_bus_id for gpu in whole if gpu.uuid not in known and gpu.pci_bus_id is not None}
        missing = {one.gpu.uuid: one for one in before if one.gpu.uuid not in listed}
        return tuple(
            one
            for one in missing.values()
            if one.gpu.pci_bus_id not in replaced and not (is_numbered(one.gpu) and _as_many(one.gpu, before, whole))
        )


def is_numbered(gpu: Gpu) -> bool:
    """Whether it has no name but its number, which may be another card's tomorrow."""
    return gpu.uuid == numbered(gpu.vendor, gpu.index)


def _as_many(gpu: Gpu, before: Sequence[GoneCard], listed: Sequence[Gpu]) -> bool:
    """Whether its vendor's list is no shorter than what was known of it."""
    now = sum(one.vendor == gpu.vendor for one in listed)
    return now >= len({one.gpu.uuid for one in before if one.gpu.vendor == gpu.vendor})


def read_remembered(folder: Path, now: Optional[float] = None) -> Remembered:
    """What is kept in the state folder; nothing where no agent has run. Raises CannotRead."""
    file = folder / FILE
    now = time.time() if now is None else now
    try:
        data = json.loads(file.read_bytes())
        gpus = tuple(decode(Gpu, gpu) for gpu in data["gpus"])
        gone = [GoneCard(decode(Gpu, one["gpu"]), float(one["since"])) for one in data.get("gone", [])]
        vendors = tuple(str(name) for name in data.get("vendors", []))
    except (FileNotFoundError, NotADirectoryError):
        return Remembered()
    except OSError as error:
        raise CannotRead(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, WireError) as error:
        raise CannotRead(f"{file} cannot be used: {error}") from None
    return Remembered(vendors, gpus, tuple(one for one in gone if now - one.since < KEPT_S))


def as_kept(remembered: Remembered) -> dict[str, Any]:
    """The file's content."""
    return {
        "vendors": list(remembered.vendors),
        "gpus": encode(list(remembered.gpus)),
        "gone": [{"gpu": encode(one.gpu), "since": one.since} for one in remembered.gone],
    }
