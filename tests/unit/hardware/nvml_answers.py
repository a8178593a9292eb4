"""What NVML's child answers, of cards that are well unless something else is said of them."""

from __future__ import annotations

from typing import Any


def card(index: int = 0, **values: Any) -> dict[str, Any]:
    made = {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA L4",
        "memory_total": 24 << 30,
        "memory_used": 1 << 20,
        "utilization": 3,
        "temperature": 40,
        "power_mw": 70500,
        "pci_bus_id": f"00000000:{index:02X}:00.0",
        "capability": "8.9",
        "mig": False,
        "mig_pending": False,
        "slices": [],
        "links": [],
        "processes": [],
    }
    return {**made, **values}


def answer(*cards: dict[str, Any], failures: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"cards": list(cards), "failures": list(failures), "driver": "550.1"}


def process(pid: int = 7, **values: Any) -> dict[str, Any]:
    made = {"pid": pid, "name": "/opt/bin/train --token x", "kind": "C", "memory": 5 << 20}
    return {**made, "gi_id": None, "ci_id": None, **values}
