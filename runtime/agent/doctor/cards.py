"""Cards by the agent's own detectors, against what the kernel shows and what the agent knew."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from runtime.agent.doctor.advice import advice_for
from runtime.agent.doctor.findings import Finding, Point, failure, finding, ok, warning
from runtime.agent.doctor.vendors import VendorFacts, judge_devices
from runtime.agent.hardware.inventory import FILE as HARDWARE_FILE
from runtime.agent.hardware.nvml_cards import VENDOR as NVIDIA
from runtime.agent.hardware.report import take_inventory
from runtime.agent.hardware.virtual import VENDOR as VIRTUAL


@dataclass(frozen=True)
class CardFacts:
    """``report`` is what ``inventory --json`` prints; ``before``: the cards that the agent knew last, by vendor,
    None when it cannot be read."""

    report: dict[str, Any] = field(default_factory=dict)
    before: Optional[dict[str, int]] = None

    @property
    def known(self) -> bool:
        """Whether anything can be concluded from the cards that are not listed."""
        return bool(self.report) and not self.report.get("error")

    @property
    def real(self) -> list[dict[str, Any]]:
        return [
            gpu for gpu in self.report.get("gpus") or [] if gpu["vendor"] != VIRTUAL and gpu.get("parent_uuid") is None
        ]

    @property
    def nvidia_present(self) -> bool:
        return any(gpu["vendor"] == NVIDIA for gpu in self.real)


def look_at_cards(tools: dict[str, str], state_dir: Path) -> CardFacts:
    """One collection by all detectors; they end by deadlines of their own."""
    return CardFacts(take_inventory(tools), _cards_before(state_dir / HARDWARE_FILE))


def _cards_before(path: Path) -> Optional[dict[str, int]]:
    try:
        counts: dict[str, int] = {}
        for gpu in json.loads(path.read_bytes())["gpus"]:
            if gpu.get("parent_uuid") is None:
                counts[gpu["vendor"]] = counts.get(gpu["vendor"], 0) + 1
        return counts
    except (OSError, ValueError, KeyError, TypeError):
        return None


def judge_driver(facts: CardFacts, vendors: Mapping[str, VendorFacts]) -> Finding:
    report = facts.report
    points: list[Point] = []
    error = report.get("error")
    if error:
        points.append(failure(str(error), "a driver that answers", advice_for(str(error))))
    answering = Counter(gpu["vendor"] for gpu in facts.real)
    for gpu in facts.real:
        problems = gpu["health"]["problems"]
        if problems:
            words = f"{gpu['vendor']} card {gpu['index']} ({gpu['uuid']}): {', '.join(problems)}"
            points.append(warning(words, "a card in good health", advice_for(words, vendor=gpu["vendor"])))
    for one in report.get("gpu_collect_failures") or []:
        if one.get("uuid") not in {gpu["uuid"] for gpu in facts.real}:
            words = f"card {one.get('index')}: {one.get('reason')}"
            points.append(warning(words, "a card in good health", advice_for(words)))
    for vendor, count in (facts.before or {}).items():
        now = answering[vendor]
        if vendor != VIRTUAL and now < count and not error:
            words = f"{now} cards of {vendor} answer, the agent knew {count}"
            points.append((warning if now else failure)(words, f"{count}", advice_for("fallen off")))
    for vendor, shown in vendors.items():
        points += judge_devices(shown, answering[vendor])
    points += _silent(report, vendors, answering)
    if facts.real:
        kinds = ", ".join(f"{one['count']} x {one['class']}" for one in report.get("classes") or [])
        points.append(ok(f"{kinds or len(facts.real)} by {report.get('source')}"))
    elif not error:
        points.append(_none(vendors))
    return finding("driver", points)


def _silent(report: Mapping[str, Any], vendors: Mapping[str, VendorFacts], answering: Counter[str]) -> list[Point]:
    """A vendor whose devices are here and do not answer, beside another whose cards do."""
    if not answering:
        return []
    return [
        warning(f"{one['vendor']}: {one['why']}", "cards that answer", advice_for(one["why"], vendor=one["vendor"]))
        for one in report.get("detection") or []
        if not one["found"] and one["vendor"] in vendors and vendors[one["vendor"]].here
    ]


def _none(vendors: Mapping[str, VendorFacts]) -> Point:
    here = [name for name, facts in vendors.items() if facts.here]
    words = f"though devices of {' and '.join(here)} are here" if here else "and no device of a known vendor is here"
    advice = "if this machine has cards, install their driver; else it is given tasks without cards only"
    return warning(f"no card answers, {words}", "a card that answers", advice)
