"""Cards by the agent's own detectors, against what the kernel shows and what the agent has known, which is in its state
folder whether it runs or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from runtime.agent.doctor.advice import advice_for
from runtime.agent.doctor.configuration import AS_ROOT
from runtime.agent.doctor.findings import Finding, Point, failure, finding, ok, unknown, warning
from runtime.agent.doctor.vendors import VendorFacts, judge_devices
from runtime.agent.hardware.nvml_cards import VENDOR as NVIDIA
from runtime.agent.hardware.remembered import CannotRead, Remembered, is_numbered, read_remembered
from runtime.agent.hardware.report import collect
from runtime.agent.hardware.virtual import VENDOR as VIRTUAL
from runtime.agent.hardware_settings import HardwareSettings
from runtime.protocol.hardware import Gpu

TAKEN_OUT = "one that was taken out is forgotten after a week, or when another is in its place"


@dataclass(frozen=True)
class CardFacts:
    """``report`` is what ``inventory --json`` prints; ``gone``: cards that the agent has known and that are missing;
    ``unread``: why what it has known cannot be told."""

    report: dict[str, Any] = field(default_factory=dict)
    gone: tuple[Gpu, ...] = ()
    unread: Optional[str] = None

    @property
    def known(self) -> bool:
        """Whether anything can be concluded from the cards that are not listed."""
        return bool(self.report) and not self.report.get("error")

    @property
    def real(self) -> list[dict[str, Any]]:
        """Whole cards whose vendor's tool has answered."""
        return [
            gpu
            for gpu in self.report.get("gpus") or []
            if gpu["vendor"] != VIRTUAL and gpu.get("parent_uuid") is None and gpu["health"]["ok"] is not None
        ]

    @property
    def nvidia_present(self) -> bool:
        return any(gpu["vendor"] == NVIDIA for gpu in self.real)


def look_at_cards(hardware: HardwareSettings, state_dir: Path) -> CardFacts:
    """One collection by all detectors, going on from what the agent has known; they end by deadlines of their own."""
    remembered, unread = Remembered(), None
    try:
        remembered = read_remembered(state_dir)
    except CannotRead as error:
        unread = str(error)
    report, after = collect(hardware.tools, mode=hardware.detect, virtual=0, remembered=remembered)
    return CardFacts(report, tuple(one.gpu for one in after.gone), unread)


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
        if one.get("uuid") not in {*(gpu["uuid"] for gpu in facts.real), *(gpu.uuid for gpu in facts.gone)}:
            words = f"card {one.get('index')}: {one.get('reason')}"
            points.append(warning(words, "a card in good health", advice_for(words)))
    points += [_gone(gpu) for gpu in facts.gone]
    if facts.unread is not None:
        points.append(unknown(f"which cards the agent has known: {facts.unread}", AS_ROOT))
    for vendor, shown in vendors.items():
        points += judge_devices(shown, answering[vendor])
    points += _silent(report, vendors, answering)
    if facts.real:
        kinds = ", ".join(f"{one['count']} x {one['class']}" for one in report.get("classes") or [])
        points.append(ok(f"{kinds or len(facts.real)} by {report.get('source')}"))
    elif not error:
        points.append(_none(vendors))
    return finding("driver", points)


def _gone(gpu: Gpu) -> Point:
    if is_numbered(gpu):
        words = f"a card of {gpu.vendor} is missing (number {gpu.index} was the last to be gone): the agent knew more"
    else:
        at = f", at {gpu.pci_bus_id}" if gpu.pci_bus_id else ""
        words = f"{gpu.vendor} card {gpu.index} ({gpu.uuid}{at}) is missing: the agent knew it"
    return failure(words, "all cards that were known", f"{advice_for('fallen off')}; {TAKEN_OUT}")


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
