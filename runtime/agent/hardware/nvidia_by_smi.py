"""NVIDIA cards by nvidia-smi, for nodes without NVML: a query for each card's values, the plain table where the tool
does not know it, other queries beside them that only add."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.cards import class_of, nothing_known
from runtime.agent.hardware.detector import Cards, CollectorError, NoAnswer, gpu_class
from runtime.agent.hardware.failed import with_failed
from runtime.agent.hardware.nvml_cards import MPS_SERVER, UNIFIED_TEXT, VENDOR, pending_note, program_name, worn_notes
from runtime.agent.hardware.parsers import nvidia_smi
from runtime.agent.hardware.pci import SYSFS, normal_bus_id, numa_node
from runtime.agent.hardware.reading import CardReading, Reading
from runtime.protocol.hardware import Gpu, GpuCapability, GpuCollectFailure, GpuHolder, GpuNote, GpuStats
from runtime.protocol.nodes import CardNote

SMI = "nvidia-smi"
CSV = "--format=csv"

FIELDS = (
    *("index", "uuid", "pci.bus_id", "name", "memory.total", "memory.used", "utilization.gpu"),
    *("temperature.gpu", "power.draw", "driver_version"),
)
"""Fields that every driver knows: an unknown one makes the whole query fail."""

QUERY = (f"--query-gpu={','.join(FIELDS)}", CSV)
SLICES = ("-L",)
ADDED = (
    (f"--query-gpu={','.join(('index', 'uuid', 'mig.mode.current', 'mig.mode.pending'))}", CSV),
    (f"--query-gpu={','.join(('index', 'uuid', 'compute_cap', 'ecc.errors.uncorrected.volatile.total'))}", CSV),
    (
        "--query-gpu=index,uuid,remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,"
        "remapped_rows.failure",
        CSV,
    ),
)
"""Asked apart, since old drivers know only some of these fields."""
PROCESSES = ("--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory", CSV)

ADD_EVERY = 12
"""Once in so many collections (a minute) what is added is read; processes as often again."""
PROCESSES_EVERY = 6

ENABLED = "Enabled"
COMPUTING = {"C", "M"}
"""Types of processes that keep tasks off a card; the others draw, or compute for a display (``C+G``)."""


@dataclasses.dataclass(frozen=True)
class Listed:
    """What one collection printed. ``added``: keys of ``CardReading.more`` by uuid; ``pending``: uuids of cards whose
    MIG mode waits for a reset; ``slices``: as ``more["mig_devices"]``."""

    main: Reading
    added: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    pending: frozenset[str] = frozenset()
    slices: Sequence[dict[str, Any]] = ()
    processes: Optional[Sequence[dict[str, Any]]] = None


class SmiCards:
    """``run``: the tool's output for some arguments; raises CollectorError where there is none."""

    def __init__(self, run: Callable[[Sequence[str]], str], sysfs: Path = SYSFS) -> None:
        self._run = run
        self._sysfs = sysfs
        self._collections = 0
        self._told: dict[Sequence[str], Reading] = {}
        self._refused: set[Sequence[str]] = set()
        self._added: dict[str, dict[str, Any]] = {}
        self._pending: frozenset[str] = frozenset()
        self._processes: Optional[Sequence[dict[str, Any]]] = None
        self._hangs = False

    def collect(self, known: list[Gpu]) -> Cards:
        self._hangs = False
        main = self._main()
        main = self._with_silent(main, known)
        if self._collections % ADD_EVERY == 0:
            self._add()
        if self._collections % PROCESSES_EVERY == 0:
            self._processes = self._aside(PROCESSES).processes
        self._collections += 1
        processes = main.processes if self._processes is None else self._processes
        listed = Listed(main, self._added, self._pending, self._slices(main), processes)
        return cards_of_smi(listed, known, self._sysfs)

    def _main(self) -> Reading:
        reading = self._read(QUERY)
        if not reading.cards and not _spoken(reading):
            reading = self._read(())
        whole = [error for error in reading.errors if not error.blamed]
        if not reading.cards and not whole and not _spoken(reading):
            raise CollectorError(nothing_known(SMI))
        if not reading.cards and whole and reading.devices != 0:
            raise CollectorError(f"{SMI} has failed: {whole[0].text}")
        if all(card.uuid is None for card in reading.cards):
            reading = _named(reading, self._aside(SLICES))
        return reading

    def _with_silent(self, main: Reading, known: list[Gpu]) -> Reading:
        """An old tool ends at the first card it cannot open, and says nothing of those behind it: each is asked for
        by itself."""
        if not any(error.blamed for error in main.errors):
            return main
        shown = {card.uuid for card in main.cards} | {normal_bus_id(card.bus_id) for card in main.cards}
        blamed = {normal_bus_id(blame.bus_id) for error in main.errors for blame in error.blamed}
        cards = list(main.cards)
        for gpu in known:
            if gpu.parent_uuid is not None or gpu.pci_bus_id is None or {gpu.uuid, gpu.pci_bus_id} & (shown | blamed):
                continue
            cards += [card for card in self._aside((*QUERY, "-i", gpu.pci_bus_id)).cards if card not in cards]
        return dataclasses.replace(main, cards=cards)

    def _add(self) -> None:
        added: dict[str, dict[str, Any]] = {}
        pending: set[str] = set()
        for arguments in ADDED:
            reading = self._last(arguments)
            waiting = reading.more.get("mig_pending", [])
            for card in reading.cards:
                if card.uuid is not None:
                    added.setdefault(card.uuid, {}).update(card.more)
                    pending |= {card.uuid} if card.index in waiting else set()
        self._added, self._pending = added, frozenset(pending)

    def _last(self, arguments: Sequence[str]) -> Reading:
        """The answer of now, or the one before when it is refused once: no slice goes away for one busy moment."""
        reading = self._aside(arguments)
        if reading.cards or arguments in self._refused:
            self._told[arguments] = reading
            self._refused.discard(arguments)
        else:
            self._refused.add(arguments)
        return self._told.get(arguments, reading)

    def _slices(self, main: Reading) -> Sequence[dict[str, Any]]:
        """``-L`` has their uuids and profiles, the table their ids and memory: read only while a card has MIG on."""
        shown = [self._added.get(card.uuid or "", card.more).get("mig_mode") for card in main.cards]
        if ENABLED not in shown:
            return ()
        table = main if "mig_devices" in main.more else self._aside(())
        named = {(one["gpu"], one["dev"]): one for one in self._aside(SLICES).more.get("mig_devices", [])}
        measured = {(one["gpu"], one.get("dev")): one for one in table.more.get("mig_devices", [])}
        return [{**measured.get(key, {}), **named.get(key, {})} for key in dict.fromkeys((*measured, *named))]

    def _read(self, arguments: Sequence[str]) -> Reading:
        return nvidia_smi.parse(list(arguments), self._run(arguments))

    def _aside(self, arguments: Sequence[str]) -> Reading:
        """A query that may fail: then nothing is added, and while the tool hangs nothing else is asked."""
        try:
            return Reading() if self._hangs else self._read(arguments)
        except NoAnswer:
            self._hangs = True
        except CollectorError:
            pass
        return Reading()


def _spoken(reading: Reading) -> bool:
    """Whether it says something of the cards, were it only that there are none; a field that the tool does not know
    says nothing."""
    return reading.devices is not None or any(error.blamed or error.kind is not None for error in reading.errors)


def _named(table: Reading, listing: Reading) -> Reading:
    """The plain table has no uuids and cuts names; ``-L`` has both, by the same index."""
    by_index = {card.index: card for card in listing.cards}
    cards = []
    for card in table.cards:
        named = by_index.get(card.index)
        if named is not None and card.failure is None and named.failure is None:
            card = dataclasses.replace(card, uuid=named.uuid)
            if named.name is not None:
                card = dataclasses.replace(card, name=named.name, name_cut=named.name_cut)
        cards.append(card)
    return dataclasses.replace(table, cards=cards)


def cards_of_smi(listed: Listed, known: list[Gpu], sysfs: Path = SYSFS) -> Cards:
    """A reading as cards; one that is condemned keeps what was known of it, and so does one that is not heard of
    while the tool blames another."""
    main = listed.main
    gpus: list[Gpu] = []
    stats: list[GpuStats] = []
    failures: list[GpuCollectFailure] = []
    capabilities: list[GpuCapability] = []
    notes: list[GpuNote] = []
    for card in main.cards:
        if card.failure is not None:
            continue
        more = {**card.more, **listed.added.get(card.uuid or "", {})}
        gpu = _gpu(card, more, main.driver_version, sysfs)
        gpus.append(gpu)
        stats.append(
            GpuStats(gpu.uuid, gpu.index, card.temperature_c, card.utilization_pct, card.memory_used_mib, card.power_w)
        )
        enabled = more.get("mig_mode") == ENABLED
        if "mig_mode" in more:
            capabilities.append(GpuCapability(gpu.uuid, mig_capable=enabled))
        if gpu.uuid in listed.pending:
            notes.append(GpuNote(gpu.uuid, CardNote.MIG_PENDING.value, pending_note(enabled, not enabled) or ""))
        if more.get("memory_unified"):
            notes.append(GpuNote(gpu.uuid, CardNote.UNIFIED_MEMORY.value, UNIFIED_TEXT))
        notes += worn_notes(gpu.uuid, more.get("remapped_rows"), more.get("ecc_uncorrectable"))
        for part in (part for part in listed.slices if part["gpu"] == card.index):
            one = _slice(gpu, part)
            gpus.append(one)
            if part.get("memory_used_mib") is not None:
                stats.append(GpuStats(one.uuid, gpu.index, memory_used_mib=part["memory_used_mib"]))
    for card in main.cards:
        if card.failure is not None:
            key = normal_bus_id(card.bus_id) or card.uuid
            gpus, failures = with_failed(gpus, failures, known, card.index, key, card.failure)
            if normal_bus_id(card.bus_id) not in {gpu.pci_bus_id for gpu in gpus}:
                gpus.append(_gpu(card, card.more, main.driver_version, sysfs))  # never seen well, but it is there
    for error in main.errors:
        for blame in error.blamed:
            key = normal_bus_id(blame.bus_id)
            if any(_is_told(failure, gpus, key, blame.index) for failure in failures):
                continue
            gpus, failures = with_failed(gpus, failures, known, blame.index, key, error.text)
    if failures:
        heard = {gpu.uuid for gpu in gpus}
        gpus += [gpu for gpu in known if gpu.uuid not in heard and gpu.parent_uuid not in heard]
    gpus.sort(key=lambda gpu: (gpu.index is None, gpu.index or 0))
    return Cards(gpus, stats, failures, capabilities, source=SMI, holders=_holders(listed.processes, gpus), notes=notes)


def _is_told(failure: GpuCollectFailure, gpus: Sequence[Gpu], key: Optional[str], index: Optional[int]) -> bool:
    card = next((gpu for gpu in gpus if gpu.uuid == failure.uuid), None)
    names = {failure.uuid, card.pci_bus_id if card is not None else None}
    return key in names if key is not None else index == failure.index


def _gpu(card: CardReading, more: dict[str, Any], driver: Optional[str], sysfs: Path) -> Gpu:
    bus_id = normal_bus_id(card.bus_id)
    return Gpu(
        uuid=card.uuid or bus_id or f"{VENDOR}-{card.index}",
        vendor=VENDOR,
        index=card.index,
        model=card.name,
        gpu_class=class_of(VENDOR, card),
        memory_total_mib=card.memory_total_mib,
        pci_bus_id=bus_id,
        numa_node=numa_node(bus_id, sysfs),
        compute_capability=more.get("compute_capability"),
        driver_version=driver,
    )


def _slice(parent: Gpu, part: dict[str, Any]) -> Gpu:
    profile, total = part.get("profile"), part.get("memory_total_mib")
    model = None if parent.gpu_class is None else parent.model
    gi_id, ci_id = part.get("gi"), part.get("ci")
    return dataclasses.replace(
        parent,
        uuid=part.get("uuid") or f"{parent.uuid}/{gi_id}/{ci_id}",
        gpu_class=gpu_class(VENDOR, f"{model} MIG {profile}" if model and profile else model, total),
        memory_total_mib=total,
        parent_uuid=parent.uuid,
        profile=profile,
        gi_id=gi_id,
        ci_id=ci_id,
    )


def _holders(processes: Optional[Sequence[dict[str, Any]]], gpus: Sequence[Gpu]) -> Optional[list[GpuHolder]]:
    """The query names cards by uuid, and lists computing processes alone; the table by index and instance. What is on
    no card that is listed is left out."""
    if processes is None:
        return None
    uuids = {gpu.uuid for gpu in gpus}
    places = {(gpu.index, gpu.gi_id, gpu.ci_id): gpu.uuid for gpu in gpus}
    found = []
    for process in processes:
        index = process.get("gpu")
        uuid = process.get("uuid") or places.get((index, process.get("gi"), process.get("ci")))
        uuid = uuid or places.get((index, None, None))
        name = program_name(process["name"])
        aside = name == MPS_SERVER or not set(process.get("type", "C").split("+")) <= COMPUTING
        if uuid in uuids:
            ours = None if aside else False
            found.append(GpuHolder(uuid or "", process["pid"], name, process["memory_mib"], ours=ours))
    return found
