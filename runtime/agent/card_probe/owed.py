"""Which cards owe a probe, and how that is told: decisions over what the tools say. Pure.

A card that was named as failed, or that a list that worked lacks, owes a probe from then on, be it for one look only:
how many looks make a card lost is the server's to know, and none that it held for lost may slip through.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Optional

from runtime.agent.hardware.detector import NONE
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.hardware.virtual import VENDOR as VIRTUAL
from runtime.protocol.hardware import Gpu, GpuCollectFailure, named_as_failed

MISSING = "a list that worked lacked it"
NOT_YET = "probe container not yet run"


@dataclass(frozen=True)
class Owed:
    """``since`` when (RFC 3339) a card is out, and what was said of it last."""

    since: str
    why: str


def bad_cards(known: Iterable[Gpu], seen: GpuSnapshot) -> dict[str, str]:
    """Card or slice -> what is wrong with it in this look; ``known``: the cards of the look before. A look that failed
    as a whole says nothing of any card."""
    if seen.collector_error is not None or seen.gpus is None:
        return {}
    bad = failing(seen)
    listed = {gpu.uuid for gpu in seen.gpus}
    keyless = {entry.vendor for entry in seen.detection if entry.loss_detection == NONE}
    for gpu in known:
        # A slice comes and goes with what is made of its card: that it is not listed says nothing.
        if gpu.parent_uuid is None and gpu.uuid not in listed and gpu.vendor not in (*keyless, VIRTUAL):
            bad[gpu.uuid] = MISSING
    return bad


def advance(owed: Mapping[str, Owed], bad: Mapping[str, str], at: str) -> Mapping[str, Owed]:
    """Card or slice -> what it owes after a look; the same mapping when nothing has changed."""
    found = dict(owed)
    for uuid, why in bad.items():
        before = found.get(uuid)
        found[uuid] = Owed(at, why) if before is None else dataclasses.replace(before, why=why)
    return found if found != owed else owed


def failing(seen: GpuSnapshot) -> dict[str, str]:
    """Card or slice -> what its tool says of it now."""
    return named_as_failed(seen.gpus or (), seen.failures)


def told(seen: GpuSnapshot, owed: Mapping[str, Owed], said: Mapping[str, str]) -> GpuSnapshot:
    """The look with those cards named as failed that are well again and owe a probe; ``said`` is how far each is."""
    if not owed or seen.collector_error is not None or seen.gpus is None:
        return seen
    already = failing(seen)
    more = [
        GpuCollectFailure(gpu.uuid, gpu.index, f"{said.get(gpu.uuid, NOT_YET)}; out since {debt.since}: {debt.why}")
        for gpu in seen.gpus
        if gpu.uuid not in already and (debt := owed.get(gpu.uuid)) is not None
    ]
    return dataclasses.replace(seen, failures=[*seen.failures, *more]) if more else seen


def without(seen: GpuSnapshot, containers: Collection[str]) -> GpuSnapshot:
    """The look without what these containers hold."""
    if not seen.holders or not containers:
        return seen
    return dataclasses.replace(seen, holders=[one for one in seen.holders if one.container_id not in containers])


def held_by(card: Gpu, gpus: Iterable[Gpu], users: Mapping[str, str]) -> Optional[str]:
    """Who holds the card or a part of it, or what it is a part of; None: nobody. ``users``: card or slice -> who."""
    names = [card.uuid, card.parent_uuid, *(gpu.uuid for gpu in gpus if gpu.parent_uuid == card.uuid)]
    return next((users[name] for name in names if name is not None and name in users), None)


def parts_of(card: Gpu, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """What a probe of the card is given: the card, and of one that is cut its slices, as tasks are."""
    return tuple(gpu for gpu in gpus if gpu.parent_uuid == card.uuid) or (card,)


def covered(card: Optional[Gpu], seen: GpuSnapshot) -> list[Gpu]:
    """The card, and its slices if it is cut: what a probe of it speaks for."""
    if card is None:
        return []
    return list({gpu.uuid: gpu for gpu in (card, *parts_of(card, seen.gpus or ()))}.values())


def well(uuid: str, seen: GpuSnapshot) -> Optional[bool]:
    """Whether the card or slice is well by this look; None when the look failed as a whole."""
    if seen.collector_error is not None or seen.gpus is None:
        return None
    card, bad = seen.gpu(uuid), failing(seen)
    return card is not None and card.uuid not in bad and card.parent_uuid not in bad
