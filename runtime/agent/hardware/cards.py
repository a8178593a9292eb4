"""What a tool's reading means for this node: cards with a uuid and a class, what they measure, and which of them is
condemned. Pure, but for the NUMA node that the kernel tells."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.detector import Cards, CollectorError, gpu_class
from runtime.agent.hardware.failed import with_failed
from runtime.agent.hardware.pci import SYSFS, normal_bus_id, numa_node
from runtime.agent.hardware.reading import BAD, WARNING, CardReading, Reading
from runtime.protocol.hardware import Gpu, GpuCollectFailure, GpuHolder, GpuNote, GpuStats
from runtime.protocol.nodes import CardNote

Key = Callable[[CardReading], Optional[str]]
"""What a card is known by for as long as it is in this machine; None: by its index only, which moves."""


def by_uuid_or_bus(card: CardReading) -> Optional[str]:
    """The tool's uuid, or the bus id in its one normal form."""
    return card.uuid or normal_bus_id(card.bus_id)


def by_bus_and_chip(card: CardReading) -> Optional[str]:
    """For cards whose several devices share a bus id."""
    bus_id, chip = normal_bus_id(card.bus_id), card.more.get("chip_id")
    return bus_id if bus_id is None or chip is None else f"{bus_id}/{chip}"


def cards_of(
    reading: Reading, known: Sequence[Gpu], *, vendor: str, source: str, key: Key = by_uuid_or_bus, sysfs: Path = SYSFS
) -> Cards:
    """A reading as this node's cards. ``known``: the last inventory of this vendor, which tells more of a card that
    is condemned now, and which card is which where the tool numbers them only.

    Raises CollectorError when nothing can be said of any card: the tool failed as a whole, it printed nothing that is
    known, or it numbers another set of cards than the one it once told apart.
    """
    refuse_failed(reading, source)
    if not reading.cards and not any(error.blamed for error in reading.errors):
        return Cards([], source=source)
    uuids = _uuids(reading.cards, known, vendor, source, key)
    gpus = [_gpu(card, uuid, vendor, reading.driver_version, sysfs) for card, uuid in zip(reading.cards, uuids)]
    failures = [
        GpuCollectFailure(gpu.uuid, gpu.index, card.failure or f"{source} calls its health {card.health_raw}")
        for card, gpu in zip(reading.cards, gpus)
        if card.health == BAD or card.failure is not None
    ]
    gpus = [_remembered(gpu, known) if gpu.model is None else gpu for gpu in gpus]
    stats = [_stats(card, gpu) for card, gpu in zip(reading.cards, gpus)]
    notes = [
        GpuNote(gpu.uuid, CardNote.HEALTH_WARNING.value, f"{source} calls its health {card.health_raw}: look at it")
        for card, gpu in zip(reading.cards, gpus)
        if card.health == WARNING
    ]
    holders = _holders(reading, gpus)
    for error in reading.errors:
        for blame in error.blamed:
            bus_id = normal_bus_id(blame.bus_id)
            listed = next((gpu for gpu in gpus if bus_id == gpu.pci_bus_id is not None), None) or next(
                (gpu for gpu in gpus if bus_id is None and gpu.index == blame.index), None
            )
            if listed is None:
                gpus, failures = with_failed(gpus, failures, list(known), blame.index, bus_id, error.text)
            elif listed.uuid not in {failure.uuid for failure in failures}:
                failures.append(GpuCollectFailure(listed.uuid, listed.index, error.text))
    return Cards(gpus, [one for one in stats if one is not None], failures, source=source, holders=holders, notes=notes)


def refuse_failed(reading: Reading, source: str) -> None:
    """Raises CollectorError for a reading that says nothing of any card, good or bad."""
    if reading.cards or any(error.blamed for error in reading.errors) or reading.devices == 0:
        return
    if reading.errors:
        raise CollectorError(f"{source} has failed: {reading.errors[0].text}")
    raise CollectorError(nothing_known(source))


def nothing_known(source: str) -> str:
    """Of a text in which nothing was read: never that there are no cards."""
    return f"{source}: its output has neither cards nor an error that is known"


def class_of(vendor: str, card: CardReading) -> Optional[str]:
    """None for a name that the tool has cut short: it would make a class of its own, that no other node has."""
    return None if card.name_cut else gpu_class(vendor, card.name, card.memory_total_mib)


def numbered(vendor: str, index: Optional[int]) -> str:
    """The name of a card that has none but its number."""
    return f"{vendor}-{index}"


def _uuids(cards: Sequence[CardReading], known: Sequence[Gpu], vendor: str, source: str, key: Key) -> list[str]:
    """One for each card, all different."""
    keys = [key(card) for card in cards]
    often = Counter(each for each in keys if each is not None)
    keys = [f"{each}/{card.index}" if each and often[each] > 1 else each for each, card in zip(keys, cards)]
    if None not in keys:
        return [each for each in keys if each is not None]
    whole = [gpu for gpu in known if gpu.parent_uuid is None]
    named = {gpu.index: gpu.uuid for gpu in whole if gpu.uuid != numbered(vendor, gpu.index)}
    unnamed = {card.index for card, each in zip(cards, keys) if each is None}
    others = {gpu.index for gpu in whole if gpu.uuid not in keys}
    if named and unnamed != others and not unnamed.isdisjoint(named):
        raise CollectorError(
            f"{source} numbers {len(cards)} cards and does not tell them apart; {len(whole)} were known by more"
        )
    return [each or named.get(card.index) or numbered(vendor, card.index) for each, card in zip(keys, cards)]


def _gpu(card: CardReading, uuid: str, vendor: str, driver: Optional[str], sysfs: Path) -> Gpu:
    bus_id = normal_bus_id(card.bus_id)
    return Gpu(
        uuid=uuid,
        vendor=vendor,
        index=card.index,
        model=card.name,
        gpu_class=class_of(vendor, card),
        memory_total_mib=card.memory_total_mib,
        pci_bus_id=bus_id,
        numa_node=numa_node(bus_id, sysfs),
        driver_version=driver,
    )


def _remembered(gpu: Gpu, known: Sequence[Gpu]) -> Gpu:
    """With what was once read of the same card and is not told now: a query that only adds may be refused."""
    old = next((each for each in known if each.uuid == gpu.uuid), None)
    if old is None:
        return gpu
    lacking = [part.name for part in dataclasses.fields(gpu) if getattr(gpu, part.name) is None]
    return dataclasses.replace(gpu, **{name: getattr(old, name) for name in lacking})


def _stats(card: CardReading, gpu: Gpu) -> Optional[GpuStats]:
    """None when it measures nothing."""
    values = (card.temperature_c, card.utilization_pct, card.memory_used_mib, card.power_w)
    return None if values == (None,) * 4 else GpuStats(gpu.uuid, gpu.index, *values)


def _holders(reading: Reading, gpus: Sequence[Gpu]) -> Optional[list[GpuHolder]]:
    """Each process on the card that it names; one that names none, or one not listed, is left out."""
    if reading.processes is None:
        return None
    found = []
    for process in reading.processes:
        on = [gpu for card, gpu in zip(reading.cards, gpus) if _is_on(process, card)]
        if len(on) == 1:
            name, memory = process.get("name"), process.get("memory_mib")
            found.append(GpuHolder(on[0].uuid, process["pid"], name, memory, ours=False))
    return found


def _is_on(process: dict[str, Any], card: CardReading) -> bool:
    """Whether every name of a card that the process has is this card's."""
    own = {"index": card.index, "uuid": card.uuid, "bus_id": card.bus_id, **card.more}
    named = [name for name in own if process.get(name) is not None and own[name] is not None]
    return bool(named) and all(process[name] == own[name] for name in named)
