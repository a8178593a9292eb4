"""The NVML child's numbers with their meaning: pure, card by card."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.detector import Cards, gpu_class
from runtime.agent.hardware.failed import with_failed
from runtime.agent.hardware.nvml_child import CARD_FAILURES
from runtime.agent.hardware.pci import SYSFS, normal_bus_id, numa_node
from runtime.protocol.hardware import Gpu, GpuCapability, GpuCollectFailure, GpuHolder, GpuNote, GpuStats, GpuTopology
from runtime.protocol.nodes import CardNote

VENDOR = "nvidia"
MIB = 1024 * 1024
IMPOSSIBLE_POWER_MW = 65_000_000
"""65535 W is what a dead card's power register reads as; with 0 C beside it the card is gone."""

UNIFIED = re.compile(r"\b(GB10|Thor|Orin|Xavier)\b", re.IGNORECASE)
"""Cards that work in the machine's own memory, and so have no figure of their own."""

UNIFIED_TEXT = "unified memory: it works in the machine's own, and has no figure of its own"

MPS_SERVER = "nvidia-cuda-mps-server"


def cards_of_nvml(answer: dict[str, Any], known: list[Gpu], sysfs: Path = SYSFS) -> Cards:
    """One answer to ``collect``; ``known`` names the cards that no longer tell their uuid."""
    gpus: list[Gpu] = []
    stats: list[GpuStats] = []
    failures: list[GpuCollectFailure] = []
    capabilities: list[GpuCapability] = []
    holders: Optional[list[GpuHolder]] = []
    for card in answer["cards"]:
        gpu = _card(card, answer.get("driver"), sysfs)
        gpus.append(gpu)
        power, temperature = card["power_mw"], card["temperature"]
        if power is not None and power >= IMPOSSIBLE_POWER_MW and temperature == 0:
            reason = "impossible values together (65535 W at 0 C)"
            failures.append(GpuCollectFailure(gpu.uuid, gpu.index, reason))
        else:
            stats.append(
                GpuStats(
                    uuid=gpu.uuid,
                    index=gpu.index,
                    temperature_c=temperature,
                    utilization_pct=card["utilization"],
                    memory_used_mib=_mib(card["memory_used"]),
                    power_w=None if power is None else round(power / 1000, 2),
                )
            )
        if card["mig"] is not None:
            capabilities.append(GpuCapability(gpu.uuid, mig_capable=card["mig"]))
        slices = [_slice(gpu, part) for part in card["slices"]]
        gpus += slices
        for part, one in zip(card["slices"], slices):
            if part["memory_used"] is not None:
                stats.append(GpuStats(one.uuid, gpu.index, memory_used_mib=_mib(part["memory_used"])))
        processes = card.get("processes")
        if processes is None:
            holders = None
        elif holders is not None:
            holders += [_holder(gpu, slices, process) for process in processes]
    for failure in answer["failures"]:
        if failure["code"] not in CARD_FAILURES:
            gpus += _as_known(gpus, known, failure["index"])
            continue
        reason = f"{failure['text']} (NVML code {failure['code']})"
        gpus, failures = with_failed(gpus, failures, known, failure["index"], None, reason)
    return Cards(gpus, stats, failures, capabilities, source="nvml", holders=holders)


def _as_known(gpus: list[Gpu], known: list[Gpu], index: int) -> list[Gpu]:
    """A card that cannot be asked, for a reason that is not its own (no rights, out of memory): as it was, with
    nothing measured."""
    answering = {gpu.uuid for gpu in gpus}
    return with_failed([], [], [gpu for gpu in known if gpu.uuid not in answering], index, None, "")[0]


def _card(card: dict[str, Any], driver: Optional[str], sysfs: Path) -> Gpu:
    bus_id = normal_bus_id(card["pci_bus_id"])
    total = _mib(card["memory_total"])
    return Gpu(
        uuid=card["uuid"] or bus_id or f"{VENDOR}-{card['index']}",
        vendor=VENDOR,
        index=card["index"],
        model=card["name"],
        gpu_class=gpu_class(VENDOR, card["name"], total),
        memory_total_mib=total,
        pci_bus_id=bus_id,
        numa_node=numa_node(bus_id, sysfs),
        compute_capability=card["capability"],
        driver_version=driver,
    )


def _slice(parent: Gpu, part: dict[str, Any]) -> Gpu:
    name = part["name"] or ""
    profile = name.rpartition("MIG ")[2].strip() if "MIG " in name else None
    total = _mib(part["memory_total"])
    return Gpu(
        uuid=part["uuid"] or f"{parent.uuid}/{part['gi_id']}/{part['ci_id']}",
        vendor=VENDOR,
        index=parent.index,
        model=parent.model,
        gpu_class=gpu_class(VENDOR, f"{parent.model} MIG {profile}" if profile else parent.model, total),
        memory_total_mib=total,
        pci_bus_id=parent.pci_bus_id,
        numa_node=parent.numa_node,
        compute_capability=parent.compute_capability,
        driver_version=parent.driver_version,
        parent_uuid=parent.uuid,
        profile=profile,
        gi_id=part["gi_id"],
        ci_id=part["ci_id"],
    )


def _holder(card: Gpu, slices: Sequence[Gpu], process: dict[str, Any]) -> GpuHolder:
    """Of the slice that it runs in, where the driver says which. ``ours`` is True for no one here: whose a process is
    is not NVML's to know; None for those that keep no task off the card."""
    inside = [one for one in slices if (one.gi_id, one.ci_id) == (process["gi_id"], process["ci_id"])]
    name = program_name(process["name"])
    aside = process["kind"] == "G" or name == MPS_SERVER
    return GpuHolder(
        uuid=inside[0].uuid if inside else card.uuid,
        pid=process["pid"],
        name=name,
        memory_mib=_mib(process["memory"]),
        ours=None if aside else False,
    )


def program_name(text: Optional[str]) -> Optional[str]:
    """The program alone, without its folder and arguments: those may hold secrets."""
    words = (text or "").split()
    return words[0].rpartition("/")[2] or words[0] if words else None


def notes_of_nvml(cards: Sequence[dict[str, Any]]) -> list[GpuNote]:
    """What is worth knowing of each card."""
    notes: list[GpuNote] = []
    for card in cards:
        uuid = card["uuid"]
        if not uuid:
            continue
        pending = pending_note(card["mig"], card["mig_pending"])
        if pending is not None:
            notes.append(GpuNote(uuid, CardNote.MIG_PENDING.value, pending))
        if card["memory_total"] is None and UNIFIED.search(card["name"] or ""):
            notes.append(GpuNote(uuid, CardNote.UNIFIED_MEMORY.value, UNIFIED_TEXT))
        notes += worn_notes(uuid, card.get("remapped"), card.get("ecc"))
    return notes


def pending_note(mig: Optional[bool], pending: Optional[bool]) -> Optional[str]:
    """What is said while the MIG mode that was asked for is not the one that is on."""
    if mig is None or pending is None or mig == pending:
        return None
    words = {True: "Enabled", False: "Disabled"}
    return f"reset needed: MIG mode is {words[mig]} now and {words[pending]} is pending"


def worn_notes(uuid: str, rows: Optional[Mapping[str, Any]], errors: Optional[int]) -> list[GpuNote]:
    """``rows``: ``{correctable, uncorrectable, pending, failure}``; ``errors``: uncorrected ones."""
    notes = []
    if rows and rows["failure"]:
        text = "row remapping failed: its memory has no spare rows left there; have the card replaced"
        notes.append(GpuNote(uuid, CardNote.REMAP_FAILED.value, text))
    if rows and rows["pending"]:
        count = "" if rows["uncorrectable"] is None else f" ({rows['uncorrectable']} uncorrectable so far)"
        text = f"reset needed: rows of its memory are to be remapped{count}"
        notes.append(GpuNote(uuid, CardNote.REMAP_PENDING.value, text))
    if errors:
        text = f"{errors} uncorrected ECC errors since its driver was loaded"
        notes.append(GpuNote(uuid, CardNote.ECC_UNCORRECTED.value, text))
    return notes


def topology_of(cards: list[dict[str, Any]], gpus: list[Gpu]) -> GpuTopology:
    """Cards that share an NVLink end (each other, or a switch) are one domain; a card that has no links, or
    does not tell, is in none."""
    domains: list[tuple[set[str], set[Optional[str]]]] = []
    for card in cards:
        if not card["uuid"] or not card.get("links"):
            continue
        ends = {normal_bus_id(end) for end in (*card["links"], card["pci_bus_id"])}
        touching = [domain for domain in domains if domain[1] & ends]
        merged = ({card["uuid"]}.union(*(d[0] for d in touching)), ends.union(*(d[1] for d in touching)))
        domains = [domain for domain in domains if domain not in touching] + [merged]
    numa = {gpu.uuid: gpu.numa_node for gpu in gpus if gpu.numa_node is not None}
    return GpuTopology(sorted(sorted(members) for members, _ in domains if len(members) > 1), numa)


def _mib(size: Optional[int]) -> Optional[int]:
    return None if size is None else size // MIB
