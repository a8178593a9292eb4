"""What counts as evidence from a machine with cards, and what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.hardware.detectors import all_detectors
from runtime.agent.hardware.tools import ToolRunner
from tests.device.evidence import Check, agree, record, seen, steady

ROOT = Path(__file__).resolve().parents[3]


def card(index: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "vendor": "nvidia",
        "model": "A Card",
        "class": "nvidia-a-card-80g",
        "memory_total_mib": 81559,
        "pci_bus_id": f"00000000:0{index}:00.0",
        "parent_uuid": None,
        **changes,
    }


def report(*cards: dict[str, Any], source: str = "nvml", error: str | None = None) -> dict[str, Any]:
    return {"gpus": list(cards), "source": source, "error": error}


@pytest.mark.parametrize(
    ("report", "ok", "words"),
    [
        (report(card(), card(1)), True, "2 cards by nvml"),
        (report(), False, "0 cards"),
        (report(card(vendor="virtual")), False, "0 cards"),
        (report(card(model=None)), False, "no name or uuid"),
        (report(card(), error="nvidia-smi did not answer in 10 s"), False, "did not answer"),
    ],
)
def test_cards_are_seen(report: dict[str, Any], ok: bool, words: str) -> None:
    check = seen(report)
    assert check.ok is ok and words in check.detail


@pytest.mark.parametrize(
    ("other", "ok", "words"),
    [
        (report(card(), source="nvidia-smi"), True, "1 cards, the same"),
        (report(card(memory_total_mib=None), source="nvidia-smi"), True, "the same"),
        (report(card(memory_total_mib=1), source="nvidia-smi"), False, "memory_total_mib is 81559 by nvml, 1 by"),
        (report(card(), card(1), source="nvidia-smi"), False, "do not list the same cards"),
        (report(error="nvidia-smi is not here"), None, "not looked at"),
    ],
)
def test_two_ways_must_agree_where_both_tell(other: dict[str, Any], ok: bool | None, words: str) -> None:
    check = agree("the tool alone", report(card()), other)
    assert check.ok is ok and words in check.detail


def test_one_collection_that_fails_is_no_steady_run() -> None:
    assert steady([None, None], [0.1, 0.2]) == Check(
        "collections", True, "2 collections, 0 failed, the longest took 0.20 s"
    )
    assert steady([None, "it hung"], [0.1, 10.0]).ok is False
    assert steady([], []).ok is False


@pytest.mark.parametrize(
    ("cards", "checks", "own", "evidence"),
    [
        ((card(),), (True,), True, "hardware"),
        ((card(),), (True, None), True, "hardware"),
        ((card(),), (True, False), True, "fixture"),
        ((card(),), (True,), False, "fixture"),
        ((card(),), (), True, "fixture"),
        ((card(vendor="virtual"),), (True,), True, "fixture"),
    ],
)
def test_only_a_run_that_held_on_tools_of_the_machine_is_hardware(
    cards: tuple[dict[str, Any], ...], checks: tuple[bool | None, ...], own: bool, evidence: str
) -> None:
    made = [Check(str(number), ok, "") for number, ok in enumerate(checks)]
    written = record(report(*cards), {"nvidia": "550.1"}, made, date="2026-01-01T00:00:00Z", commit="abc", own=own)
    assert written["evidence"] == evidence


def test_no_vendor_claims_hardware_without_a_kept_record() -> None:
    kept = json.loads((ROOT / "docs" / "hardware-evidence.json").read_text())
    for one in kept["records"]:
        assert one["evidence"] == "hardware" and one["date"] and (ROOT / one["recorded"]).exists()
        assert all(vendor["driver"] and vendor["cards"] for vendor in one["vendors"])
    proven = {vendor["vendor"] for one in kept["records"] for vendor in one["vendors"]}
    for detector in all_detectors(ToolRunner(), {}):
        assert detector.evidence == ("hardware" if detector.vendor in proven else "fixture"), detector.vendor
