"""A reading of a vendor's tool in the inventory's shape, with what only the text tells beside it. Pure."""

from __future__ import annotations

from typing import Any, Optional

from runtime.agent.hardware.cards import class_of
from runtime.agent.hardware.pci import normal_bus_id
from runtime.agent.hardware.reading import BAD, WARNING, Blame, CardReading, Reading

MIG_KEYS = ("mig_devices", "mig_change", "created", "destroyed", "instances", "profiles", "placements")


def as_json(reading: Reading, vendor: str) -> dict[str, Any]:
    """``gpus`` as in the inventory; a value that the text does not tell is null. ``devices`` null: the text does not
    say how many there are. ``health.ok`` null: it gives no verdict. Of several errors ``error`` is the first."""
    error = reading.errors[0] if reading.errors else None
    blamed = [_blamed(one) for each in reading.errors for one in each.blamed]
    mig = {key: reading.more[key] for key in MIG_KEYS if key in reading.more}
    return {
        "devices": reading.devices,
        "gpus": [_card(card, vendor) for card in reading.cards],
        "gpu_collect_failures": [
            *(
                {"index": card.index, "uuid": card.uuid, "reason": card.failure}
                for card in reading.cards
                if card.failure
            ),
            *(
                {"index": one.index, "uuid": None, "bus_id": one.bus_id, "reason": each.text}
                for each in reading.errors
                for one in each.blamed
            ),
        ],
        "error": None if error is None else error.text,
        "error_kind": None if error is None else error.kind,
        "blamed": blamed,
        "driver_version": reading.driver_version,
        "processes": reading.processes,
        **({"mig": mig} if mig else {}),
        **{key: value for key, value in reading.more.items() if key not in mig},
    }


def _blamed(one: Blame) -> dict[str, Any]:
    profile = {} if one.profile_id is None else {"profile_id": one.profile_id}
    return {"index": one.index, "bus_id": one.bus_id, **profile}


def _card(card: CardReading, vendor: str) -> dict[str, Any]:
    return {
        "index": card.index,
        "uuid": card.uuid,
        "vendor": vendor,
        "model": card.name,
        "name_truncated": card.name_cut,
        "class": class_of(vendor, card),
        "memory_total_mib": card.memory_total_mib,
        "memory_used_mib": card.memory_used_mib,
        "utilization_pct": card.utilization_pct,
        "temperature_c": card.temperature_c,
        "power_w": card.power_w,
        "power_limit_w": card.power_limit_w,
        "pci_bus_id": normal_bus_id(card.bus_id),
        "bus_id": card.bus_id,
        "serial": card.serial,
        "numa_node": None,
        "compute_capability": card.more.get("compute_capability"),
        "parent_uuid": None,
        "profile": None,
        "health": _health(card),
        **{key: value for key, value in card.more.items() if key != "compute_capability"},
    }


def _health(card: CardReading) -> dict[str, Any]:
    problems = [card.failure] if card.failure else []
    if not problems and card.health in (BAD, WARNING):
        problems = [f"health {card.health_raw or card.health}"]
    ok: Optional[bool] = None if card.health is None and not problems else not (card.failure or card.health == BAD)
    return {"ok": ok, "verdict": card.health, "raw": card.health_raw, "problems": problems}
