"""What makes a run on a machine with cards count as evidence: pure decisions over what was read.

A record names the driver, the cards, the date and the recorded outputs. ``docs/hardware-evidence.json`` lists the
records that were kept; only a vendor that is named there may call its evidence ``hardware``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

HARDWARE, FIXTURE = "hardware", "fixture"
KEYS = ("index", "uuid", "model", "memory_total_mib", "pci_bus_id")
"""What two ways of looking at the same cards must agree on, where both tell it."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``ok`` None: it could not be looked at here, and ``detail`` says why."""

    name: str
    ok: Optional[bool]
    detail: str


def real_cards(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The cards of an inventory report, without virtual ones and without slices."""
    return [card for card in report["gpus"] if card["vendor"] != "virtual" and card["parent_uuid"] is None]


def seen(report: dict[str, Any]) -> Check:
    cards = real_cards(report)
    if report["error"]:
        return Check("inventory", False, str(report["error"]))
    unnamed = [card["index"] for card in cards if not card["model"] or not card["uuid"]]
    words = f"{len(cards)} cards by {report['source']}: {', '.join(sorted({str(card['class']) for card in cards}))}"
    return Check("inventory", bool(cards) and not unnamed, words if not unnamed else f"no name or uuid: {unnamed}")


def agree(name: str, one: dict[str, Any], other: dict[str, Any]) -> Check:
    """Whether two reports speak of the same cards, each named by its bus id, or else by its uuid."""
    first, second = _by_place(one), _by_place(other)
    if other["error"]:
        return Check(name, None, f"not looked at: {other['error']}")
    if first.keys() != second.keys():
        apart = sorted(first.keys() ^ second.keys())
        return Check(name, False, f"{one['source']} and {other['source']} do not list the same cards: {apart}")
    wrong = [
        f"{place}: {key} is {first[place][key]!r} by {one['source']}, {second[place][key]!r} by {other['source']}"
        for place in sorted(first)
        for key in KEYS
        if None not in (first[place][key], second[place][key]) and first[place][key] != second[place][key]
    ]
    return Check(name, not wrong, "; ".join(wrong) or f"{len(first)} cards, the same by {one['source']} and the tool")


def steady(errors: list[Optional[str]], seconds: list[float]) -> Check:
    """Whether collecting went on without an error; ``seconds``: how long each took."""
    failed = [error for error in errors if error]
    words = f"{len(errors)} collections, {len(failed)} failed, the longest took {max(seconds, default=0.0):.2f} s"
    return Check("collections", bool(errors) and not failed, "; ".join([words, *failed[:1]]))


def record(
    report: dict[str, Any], drivers: dict[str, Optional[str]], checks: list[Check], *, date: str, commit: str, own: bool
) -> dict[str, Any]:
    """The evidence record. ``own``: the vendors' tools were found where they are, none was named by hand; what a
    named tool prints may come from anywhere, so that is never more than a fixture."""
    cards = real_cards(report)
    passed = bool(checks) and all(check.ok is not False for check in checks)
    return {
        "date": date,
        "commit": commit,
        "evidence": HARDWARE if own and passed and cards else FIXTURE,
        "source": report["source"],
        "vendors": [
            {
                "vendor": vendor,
                "driver": drivers.get(vendor),
                "cards": [{key: card[key] for key in KEYS} for card in cards if card["vendor"] == vendor],
            }
            for vendor in sorted({card["vendor"] for card in cards})
        ],
        "checks": [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks],
    }


def _by_place(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {card["pci_bus_id"] or card["uuid"]: card for card in real_cards(report)}
