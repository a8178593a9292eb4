"""A card that a tool condemns, found again in the last inventory."""

from __future__ import annotations

from typing import Optional

from runtime.protocol.hardware import Gpu, GpuCollectFailure


def with_failed(
    gpus: list[Gpu],
    failures: list[GpuCollectFailure],
    known: list[Gpu],
    index: Optional[int],
    key: Optional[str],
    reason: str,
) -> tuple[list[Gpu], list[GpuCollectFailure]]:
    """Both lists with the failed card: found by ``key`` (bus id or uuid) where there is one, else by index.

    The index is trusted only while no card that answers carries that old card's uuid: indices move.
    """
    answering = {gpu.uuid for gpu in gpus}
    old = [gpu for gpu in known if gpu.parent_uuid is None and gpu.uuid not in answering]
    if key is not None:
        matches = [gpu for gpu in old if key in (gpu.uuid, gpu.pci_bus_id)]
    else:
        matches = [gpu for gpu in old if gpu.index == index]
    if len(matches) != 1:
        return gpus, [*failures, GpuCollectFailure(key, index, reason)]
    card = matches[0]
    slices = [gpu for gpu in known if gpu.parent_uuid == card.uuid]
    return [*gpus, card, *slices], [*failures, GpuCollectFailure(card.uuid, card.index, reason)]
