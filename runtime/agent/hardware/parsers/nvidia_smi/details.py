"""Cards out of ``nvidia-smi -q`` and ``nvidia-smi -q -x``.

The same key stands under several headings (a MIG device has memory too, a module draws power too), so every value is
taken by its whole path. Values have units there; one without its unit was cut off and is not believed.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.parsers.nvidia_smi import verdicts
from runtime.agent.hardware.parsers.tree import Node, from_keys, from_xml
from runtime.agent.hardware.reading import BAD, CardReading, Complaint, Reading
from runtime.agent.hardware.values import number, whole, word

_POWER = "gpu_power_readings|power_readings"
_SLICES = "mig_device|mig_devices"
_UNCORRECTABLE = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_sec_ded", "dram_uncorrectable")


def read_keys(lines: list[str]) -> Optional[Reading]:
    """``-q``; None when no line names a card or the tool's log."""
    root = from_keys(lines)
    if not any("NVSMI LOG" in line for line in lines) and next(root.all("gpu"), None) is None:
        return None
    return _reading(root)


def read_xml(text: str) -> Optional[Reading]:
    """``-q -x``; None when the text has no ``nvidia_smi_log``."""
    logs = list(from_xml(text).all("nvidia_smi_log"))
    return _reading(logs[-1]) if logs else None


def _reading(log: Node) -> Reading:
    cards: dict[Any, CardReading] = {}
    errors: list[Complaint] = []
    slices: dict[Any, dict[str, Any]] = {}
    processes: dict[Any, dict[str, Any]] = {}
    listed = told = False
    for gpu in log.all("gpu"):
        card, verdict = _card(gpu)
        if card.bus_id is None and card.uuid is None:
            continue
        cards[card.bus_id or card.uuid] = card
        errors += [complaint for complaint in verdict.complaints(card) if complaint not in errors]
        parts = [part for node in gpu.all("mig_device", "mig_devices") for part in (*node.all("mig_device"), node)]
        listed = listed or bool(parts)
        for part in filter(None, (_slice(card.index, part) for part in parts)):
            slices[card.index, part["gi"], part["ci"]] = part
        section = gpu.at("processes")
        told = told or section is not None
        for process in _processes(card.index, section):
            processes[process.get("gpu"), process.get("gi"), process.get("ci"), process["pid"]] = process
    more: dict[str, Any] = {}
    cuda = _version(log.text("cuda_umd_version|cuda_version"))
    if cuda is not None:
        more["cuda_version"] = cuda
    attached = whole(log.text("attached_gpus"))
    if attached is not None:
        more["attached_reported"] = attached
    if listed:
        more["mig_devices"] = list(slices.values())
        more.update(verdicts.mig_memory(more["mig_devices"]))
    pending = [card.index for card in cards.values() if card.more.pop("_waiting", False) and card.index is not None]
    if pending:
        more["mig_pending"] = pending
    return Reading(
        cards=list(cards.values()),
        devices=len(cards) or None,
        errors=errors,
        driver_version=_version(log.text("kmd_version|driver_version")),
        processes=list(processes.values()) if told else None,
        more=more,
    )


def _card(gpu: Node) -> tuple[CardReading, verdicts.Verdict]:
    name, uuid = gpu.text("product_name"), gpu.text("uuid|gpu_uuid")
    verdict = verdicts.verdict(name, uuid, (node.value for node in gpu.children if node.value))
    more: dict[str, Any] = {"mig_mode": verdicts.mig_mode(gpu.text("mig_mode", "current_mig|current"))}
    wanted = verdicts.mig_mode(gpu.text("mig_mode", "pending_mig|pending"))
    if wanted is not None and more["mig_mode"] is not None and wanted != more["mig_mode"]:
        more["_waiting"] = True
    uncorrectable = [whole(gpu.text("ecc_errors", "volatile", key)) for key in _UNCORRECTABLE]
    if any(count is not None for count in uncorrectable):
        more["ecc_uncorrectable"] = sum(count for count in uncorrectable if count is not None)
    elif whole(gpu.text("ecc_errors", "volatile", "double_bit", "total")) is not None:
        more["ecc_uncorrectable"] = whole(gpu.text("ecc_errors", "volatile", "double_bit", "total"))
    reset = verdicts.yes(gpu.text("gpu_reset_status", "reset_required"))
    if reset is not None:
        more["reset_required"] = reset
    if reset and verdict.health is None:
        verdict = verdicts.Verdict(BAD, "Reset Required: Yes", "GPU requires reset", "reset_required")
    rows = _remapped(gpu)
    if rows is not None:
        more["remapped_rows"] = rows
        verdict = verdict if verdict.health is not None else verdicts.remap_verdict(rows)
    fan = _with_unit(gpu.text("fan_speed"), "%")
    if fan is not None:
        more["fan_pct"] = fan
    compute = word(gpu.text("compute_mode"))
    if compute is not None:
        more["compute_mode"] = compute
    places = (gpu.value, gpu.text("pci", "pci_bus_id|bus_id"))
    card = CardReading(
        index=whole(gpu.text("minor_number")),
        name=None if verdict.raw == name else word(name),
        uuid=verdicts.uuid_of(uuid),
        serial=word(gpu.text("serial|serial_number")),
        bus_id=next((place for place in places if verdicts.is_bus_id(place)), None),
        memory_total_mib=_memory(gpu.text("fb_memory_usage", "total")),
        memory_used_mib=_memory(gpu.text("fb_memory_usage", "used")),
        utilization_pct=_with_unit(gpu.text("utilization", "gpu_util|gpu"), "%"),
        temperature_c=_with_unit(gpu.text("temperature", "gpu_temp|gpu_current_temp"), "C"),
        power_w=_with_unit(gpu.text(_POWER, "power_draw|average_power_draw"), "W"),
        power_limit_w=_with_unit(gpu.text(_POWER, "current_power_limit|power_limit"), "W"),
        health=verdict.health,
        health_raw=verdict.raw,
        failure=verdict.failure,
        more=more,
    )
    return card, verdict


def _remapped(gpu: Node) -> Optional[dict[str, Any]]:
    node = gpu.at("remapped_rows")
    if node is None or not node.children:
        return None
    rows = {
        "correctable": whole(node.text("correctable_error|remapped_row_corr")),
        "uncorrectable": whole(node.text("uncorrectable_error|remapped_row_unc")),
        "pending": verdicts.yes(node.text("pending|remapped_row_pending")),
        "failure": verdicts.yes(node.text("remapping_failure_occurred|remapped_row_failure")),
    }
    return rows if any(value is not None for value in rows.values()) else None


def _slice(index: Optional[int], part: Node) -> Optional[dict[str, Any]]:
    gi, ci, dev = (whole(part.text(key)) for key in ("gpu_instance_id", "compute_instance_id", "index"))
    if gi is None or ci is None:
        return None
    memory = "fb_memory_usage|shared_fb_memory_usage"
    found = {"gpu": index, "gi": gi, "ci": ci, "dev": dev}
    found["memory_used_mib"] = _memory(part.text(memory, "used"))
    found["memory_total_mib"] = _memory(part.text(memory, "total"))
    return {**found, "sm": whole(part.text("device_attributes", "shared", "multiprocessor_count"))}


def _processes(index: Optional[int], section: Optional[Node]) -> list[dict[str, Any]]:
    """XML puts each into an element; ``-q`` lists ids one after the other, the rest below the process's."""
    if section is None:
        return []
    found: list[dict[str, Any]] = []
    ids: dict[str, Optional[int]] = {}
    for node in section.children:
        if node.name == "process_info":
            ids = {key: whole(node.text(name)) for key, name in _INSTANCE_IDS}
            pid, holder = whole(node.text("pid")), node
        elif node.name == "process_id":
            pid, holder = whole(node.value), node
        else:
            ids.update({key: whole(node.value) for key, name in _INSTANCE_IDS if node.name == name})
            continue
        if pid is not None:
            entry: dict[str, Any] = {"gpu": index, **{key: value for key, value in ids.items() if value is not None}}
            entry.update(pid=pid, name=word(holder.text("process_name|name")))
            found.append({**entry, "memory_mib": _memory(holder.text("used_memory|used_gpu_memory"))})
        ids = {}
    return found


_INSTANCE_IDS = (("gi", "gpu_instance_id"), ("ci", "compute_instance_id"))


def _version(text: Optional[str]) -> Optional[str]:
    """``610.57.04`` also where a remark follows, such as that the key will go."""
    match = re.match(r"\d[\w.]*", (text or "").strip())
    return None if match is None else match.group()


def _memory(text: Optional[str]) -> Optional[int]:
    return tables.amount_mib(text) if re.search(r"[KMGT]iB$", (text or "").strip()) else None


def _with_unit(text: Optional[str], unit: str) -> Optional[float]:
    return number(text) if (text or "").strip().endswith(unit) else None
