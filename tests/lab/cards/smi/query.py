"""``--query-gpu`` and ``--query-compute-apps``: comma-separated rows."""

from __future__ import annotations

import time
from typing import Any

from state import Card, Failure, State, lost, reading, text

# Field -> (key in the file, the NVML call behind it, unit, number format).
FIELDS = {
    "index": ("index", "nvmlDeviceGetIndex", "", "d"),
    "uuid": ("uuid", "nvmlDeviceGetUUID", "", "s"),
    "gpu_uuid": ("uuid", "nvmlDeviceGetUUID", "", "s"),
    "name": ("name", "nvmlDeviceGetName", "", "s"),
    "gpu_name": ("name", "nvmlDeviceGetName", "", "s"),
    "serial": ("serial", "nvmlDeviceGetSerial", "", "s"),
    "pci.bus_id": ("pci_bus_id", "nvmlDeviceGetPciInfo", "", "s"),
    "gpu_bus_id": ("pci_bus_id", "nvmlDeviceGetPciInfo", "", "s"),
    "compute_cap": ("compute_capability", "nvmlDeviceGetCudaComputeCapability", "", "s"),
    "memory.total": ("memory_total_mib", "nvmlDeviceGetMemoryInfo", " MiB", "d"),
    "memory.used": ("memory_used_mib", "nvmlDeviceGetMemoryInfo", " MiB", "d"),
    "utilization.gpu": ("utilization_pct", "nvmlDeviceGetUtilizationRates", " %", "d"),
    "temperature.gpu": ("temperature_c", "nvmlDeviceGetTemperature", "", "d"),
    "power.draw": ("power_w", "nvmlDeviceGetPowerUsage", " W", ".2f"),
    "power.limit": ("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", " W", ".2f"),
    "mig.mode.current": ("mig_mode", "nvmlDeviceGetMigMode", "", "s"),
    "mig.mode.pending": ("mig_pending", "nvmlDeviceGetMigMode", "", "s"),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", "", "d"),
}
FIXED = {
    "persistence_mode": "Enabled", "pstate": "P0", "compute_mode": "Default", "fan.speed": "[N/A]",
    "ecc.mode.current": "Enabled", "display_active": "Disabled",
}  # fmt: skip
PROCESS_FIELDS = {
    "pid": ("pid", ""), "process_name": ("name", ""), "name": ("name", ""), "used_gpu_memory": ("memory_mib", " MiB"),
    "used_memory": ("memory_mib", " MiB"),
}  # fmt: skip


def cards(state: State, chosen: list[Card], fields: list[str], form: list[str]) -> int:
    """One row a card; a card whose handle is refused is a line of its own, and the exit code."""
    fields = [field.strip() for field in fields]
    known = [*FIELDS, *FIXED, "memory.free", "count", "driver_version", "timestamp", "gpu_serial", "memory.reserved"]
    _refuse_unknown(fields, known)
    _header(fields, form, {field: entry[2] for field, entry in FIELDS.items()} | {"memory.free": " MiB"})
    code = 0
    for card in chosen:
        message = lost(card)
        if message:
            print(message[0])
            code = message[1]
            continue
        print(", ".join(_value(state, card, field, "nounits" in form) for field in fields))
    return code if code < 256 else 255


def processes(state: State, chosen: list[Card], fields: list[str], form: list[str]) -> int:
    """One row a compute process of every chosen card."""
    fields = [field.strip() for field in fields]
    _refuse_unknown(fields, [*PROCESS_FIELDS, "gpu_uuid", "gpu_name", "gpu_bus_id", "timestamp"])
    _header(fields, form, {field: entry[1] for field, entry in PROCESS_FIELDS.items()})
    for card in chosen:
        if message := lost(card):
            print(message[0])
            continue
        for process in card.get("processes", []):
            if process.get("type", "C") == "C":
                print(", ".join(_process_value(state, card, process, field, "nounits" in form) for field in fields))
    return 0


def _refuse_unknown(fields: list[str], known: list[str]) -> None:
    for field in fields:
        if field not in known:
            raise Failure(f'Field "{field}" is not a valid field to query.\n', 2)


def _header(fields: list[str], form: list[str], units: dict[str, str]) -> None:
    if "noheader" not in form:
        print(", ".join(field + (f" [{units[field].strip()}]" if units.get(field) else "") for field in fields))


def _value(state: State, card: Card, field: str, bare: bool) -> str:
    if field in FIXED:
        return FIXED[field]
    if field == "count":
        return str(len(state.cards))
    if field == "driver_version":
        return str(state.tree["driver_version"])
    if field == "timestamp":
        return time.strftime("%Y/%m/%d %H:%M:%S.000")
    if field == "gpu_serial":
        field = "serial"
    if field == "memory.reserved":
        return _with_unit(card.get("memory_reserved_mib", 0), "d", " MiB", bare)
    if field == "memory.free":
        total, used = _value(state, card, "memory.total", True), _value(state, card, "memory.used", True)
        return total if total.startswith("[") else _with_unit(int(total) - int(used), "d", " MiB", bare)
    key, call, unit, form = FIELDS[field]
    value, code = reading(state, card, call, key)
    if field == "utilization.gpu" and card.get("mig_mode") == "Enabled":
        value, code = None, 3
    if code:
        return "[N/A]" if code == 3 else f"[{text(code)}]"
    return _with_unit(value, form, unit, bare)


def _process_value(state: State, card: Card, process: Card, field: str, bare: bool) -> str:
    if field not in PROCESS_FIELDS:
        return _value(state, card, field, bare)
    key, unit = PROCESS_FIELDS[field]
    value = process.get(key)
    return "[N/A]" if value is None else _with_unit(value, "", unit, bare)


def _with_unit(value: Any, form: str, unit: str, bare: bool) -> str:
    return format(value, form) + ("" if bare else unit)
