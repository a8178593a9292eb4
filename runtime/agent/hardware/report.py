"""``heterofleet-agent inventory``: the cards as the scheduler would see them, without settings, key or server."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from runtime.agent.hardware.detector import Detector
from runtime.agent.hardware.detectors import all_detectors
from runtime.agent.hardware.infiniband import adapters, sysfs
from runtime.agent.hardware.infiniband.look import look
from runtime.agent.hardware.inventory import GpuSnapshot, Inventory
from runtime.agent.hardware.nvidia import Nvidia
from runtime.agent.hardware.remembered import GoneCard, Remembered
from runtime.agent.hardware.report_lines import holder_lines, link_lines, without_links, without_memory
from runtime.agent.hardware.tools import ToolError, ToolRunner
from runtime.agent.hardware.virtual import VENDOR as VIRTUAL
from runtime.protocol.codec import encode
from runtime.protocol.hardware import Gpu, GpuHolder, GpuStats
from runtime.protocol.names import node_id_from_hostname
from runtime.protocol.times import from_epoch, to_wire

NO_CARD = "no accelerator that answers: cannot run tasks that ask for cards"
NOT_LOOKED = "cards were not looked for: whether tasks that ask for cards can run here is not known"
UNHEARD = "not known now: it was here before, and its vendor's tool has failed"
UNKNOWN_BEFORE = (
    "what the agent has known here cannot be read by this user: a node that ever had cards gives out no virtual ones"
)
MIXED = "mixed"
"""``source`` where tools of several vendors answer."""


def take_inventory(
    tools: dict[str, str],
    *,
    cards: bool = True,
    nvml: bool = True,
    mode: str = "first",
    virtual: int = 1,
    remembered: Optional[Remembered] = None,
) -> dict[str, Any]:
    """One look at this machine, as the JSON object of the contract; null where nothing was measured. ``remembered``:
    what this node's agent has known."""
    if not cards:
        return report_of(GpuSnapshot(gpus=[], source="none"), looked=False)
    return collect(tools, nvml=nvml, mode=mode, virtual=virtual, remembered=remembered)[0]


def collect(
    tools: dict[str, str],
    *,
    nvml: bool = True,
    mode: str = "first",
    virtual: int = 1,
    remembered: Optional[Remembered] = None,
) -> tuple[dict[str, Any], Remembered]:
    """The report, and what is known of this node's cards after it; nothing is written."""
    runner = ToolRunner()
    detectors: list[Detector] = all_detectors(runner, tools)
    if not nvml:
        detectors = [Nvidia(runner, tools, use_nvml=False) if isinstance(d, Nvidia) else d for d in detectors]
    inventory = Inventory(
        detectors,
        runner,
        node_id=node_id_from_hostname(platform.node()),
        state_dir=None,
        mode=mode,
        virtual=virtual,
        remembered=remembered,
    )
    try:
        inventory.round(all_vendors=True)
        after = inventory.remembered()
        return report_of(inventory.snapshot(), after.gone), after
    finally:
        inventory.stop()


def add_infiniband(report: dict[str, Any], fabrics: Mapping[str, str], root: Path = sysfs.ROOT) -> None:
    """Adds the ports below ``root`` and what the node cannot do for want of them. ``fabrics``: adapter -> fabric."""
    try:
        looked = look(ToolRunner(), root)
    except ToolError as error:
        report["cannot"].append(f"InfiniBand not known: {error}")
        return
    report["hcas"] = adapters.adapters(looked, fabrics)
    without = adapters.cannot(looked)
    if without is not None:
        report["cannot"].append(without)


def report_of(snapshot: GpuSnapshot, gone: Sequence[GoneCard] = (), *, looked: bool = True) -> dict[str, Any]:
    """A snapshot as the report. Sections that this release does not look at are null: not known, not none. ``gone``:
    cards that were known here and are missing. ``looked`` False: nobody asked for cards."""
    stats = {one.uuid: one for one in snapshot.stats}
    problems: dict[Optional[str], list[str]] = {}
    for failure in snapshot.failures:
        problems.setdefault(failure.uuid, []).append(failure.reason)
    condemned = set(problems)
    for note in snapshot.notes:
        problems.setdefault(note.uuid, []).append(note.text)
    for gpu in snapshot.gpus or []:
        if gpu.vendor in snapshot.silent:
            problems[gpu.uuid] = [UNHEARD]
    gpus = [
        _card(
            gpu,
            stats.get(gpu.uuid),
            problems.get(gpu.uuid, []),
            ok=None if gpu.vendor in snapshot.silent else gpu.uuid not in condemned,
        )
        for gpu in snapshot.gpus or []
    ]
    # A card that is cut is given out by its slices alone.
    cut = {gpu.parent_uuid for gpu in snapshot.gpus or []}
    classes = Counter(gpu.gpu_class for gpu in snapshot.gpus or [] if gpu.gpu_class and gpu.uuid not in cut)
    real = [gpu for gpu in snapshot.gpus or [] if gpu.vendor != VIRTUAL]
    answering = [gpu for gpu in real if gpu.vendor not in snapshot.silent]
    cannot = [] if answering else [NO_CARD if looked else NOT_LOOKED]
    cannot += _left_out(snapshot)
    report: dict[str, Any] = {
        "source": MIXED if "+" in snapshot.source else snapshot.source,
        "error": snapshot.collector_error,
        "detection": encode(snapshot.detection),
        "classes": [{"class": name, "count": count} for name, count in sorted(classes.items())],
        "gpus": gpus,
        "gpu_collect_failures": [*encode(snapshot.failures), *map(_missing, gone)],
        "gpu_holders": encode(_holders(snapshot.holders)),
        "nvlink_domains": snapshot.topology.nvlink_domains if snapshot.topology else None,
        "hcas": None,
        "engines": None,
        "models": None,
        "cannot": cannot,
    }
    cannot += [*without_links(report), *without_memory(report)]
    return report


def _missing(one: GoneCard) -> dict[str, Any]:
    reason = f"missing since {to_wire(from_epoch(one.since))}: the agent knew it here"
    return {"uuid": one.gpu.uuid, "index": one.gpu.index, "reason": reason}


def _left_out(snapshot: GpuSnapshot) -> list[str]:
    """Vendors that answer with cards beside the one that the node goes by."""
    used = {gpu.vendor for gpu in snapshot.gpus or []}
    if snapshot.collector_error is not None:
        return []
    return [
        f"cards of {one.vendor} are here too: cannot give them out unless hardware.detect is all"
        for one in snapshot.detection
        if one.found and one.vendor not in used and not used <= {VIRTUAL}
    ]


def _holders(holders: Optional[list[GpuHolder]]) -> Optional[list[GpuHolder]]:
    """Whose a container is, only the agent that runs it knows."""
    if holders is None:
        return None
    return [replace(holder, ours=None) if holder.container_id is not None else holder for holder in holders]


def _card(gpu: Gpu, stats: Optional[GpuStats], problems: list[str], *, ok: Optional[bool]) -> dict[str, Any]:
    """``problems`` has what condemns the card, and what is worth knowing though it is ``ok``; None: not known."""
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "vendor": gpu.vendor,
        "model": gpu.model,
        "class": gpu.gpu_class,
        "memory_total_mib": gpu.memory_total_mib,
        "memory_used_mib": stats.memory_used_mib if stats else None,
        "utilization_pct": stats.utilization_pct if stats else None,
        "temperature_c": stats.temperature_c if stats else None,
        "power_w": stats.power_w if stats else None,
        "pci_bus_id": gpu.pci_bus_id,
        "numa_node": gpu.numa_node,
        "compute_capability": gpu.compute_capability,
        "parent_uuid": gpu.parent_uuid,
        "profile": gpu.profile,
        "health": {"ok": ok, "problems": problems},
    }


def is_virtual(report: dict[str, Any]) -> bool:
    """Whether its cards are none that are really here."""
    return bool(report["gpus"]) and all(card["vendor"] == VIRTUAL for card in report["gpus"])


def as_table(report: dict[str, Any]) -> str:
    """For people: a line a card with its troubles below it, what was detected, links, holders and ports, then what this
    node cannot do."""
    head = ("index", "class", "name", "memory", "used", "capability", "NUMA", "health", "uuid")
    rows = [head]
    said: list[list[str]] = [[]]
    for card in report["gpus"]:
        health = card["health"]
        rows.append(
            (
                _text(card["index"]),
                _text(card["class"]),
                _text(card["model"]),
                _mib(card["memory_total_mib"]),
                _mib(card["memory_used_mib"]),
                _text(card["compute_capability"]),
                _text(card["numa_node"]),
                {True: "ok", False: "bad", None: "unknown"}[health["ok"]],
                card["uuid"],
            )
        )
        said.append(health["problems"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines: list[str] = []
    for row, problems in zip(rows, said):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        lines += [" " * (widths[0] + 2) + problem for problem in problems]
    if len(rows) == 1:
        lines = ["no cards"]
    listed = {card["uuid"] for card in report["gpus"]}
    lines += [
        f"card {one['uuid'] or _text(one['index'])}, not listed: {one['reason']}"
        for one in report["gpu_collect_failures"]
        if one["uuid"] not in listed
    ]
    lines += [
        f"{one['vendor']}: {'found' if one['found'] else 'not found'}, {one['why']}" for one in report["detection"]
    ]
    lines += [*link_lines(report), *holder_lines(report), *adapters.lines(report["hcas"] or [])]
    lines += report["cannot"]
    return "\n".join(lines)


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _mib(value: Optional[int]) -> str:
    return "-" if value is None else f"{value} MiB"
