"""The node's cards as last seen, kept fresh by a loop of its own so that nobody waits for a vendor's tool.

A vendor once found stays the node's vendor, also over a restart: from then on a tool that fails is a collector
error, never a node without cards. The last known inventory is kept with it.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from runtime.agent.hardware.detector import Cards, CollectorError, Detection, Detector
from runtime.agent.hardware.looks import Looks
from runtime.agent.hardware.remembered import FILE, CannotRead, Remembered, as_kept, read_remembered
from runtime.agent.hardware.tools import ToolRunner
from runtime.agent.hardware.virtual import VENDOR as VIRTUAL
from runtime.agent.hardware.virtual import virtual_cards
from runtime.agent.loop import Loop
from runtime.agent.state import StateError, write_durably
from runtime.protocol.hardware import (
    Gpu,
    GpuCapability,
    GpuCollectFailure,
    GpuDetection,
    GpuHolder,
    GpuNote,
    GpuStats,
    GpuTopology,
)

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
NO_SOURCE = "unavailable"
"""The ``source`` of a snapshot to which no tool has contributed."""

ROUND_DEADLINE_S = 60.0


@dataclass(frozen=True)
class GpuSnapshot:
    """What the heartbeat says of cards. ``gpus`` None: not known yet; a failing collector never shrinks it.

    ``collector_error`` is the sentence of a collection that failed as a whole; ``stats``, ``failures``,
    ``capabilities`` and ``notes`` are then empty: they are of now, or not at all. ``holders``: None when no tool
    tells. ``tells``: by uuid what only a vendor's tool says of a card, for whoever gives it to a task; never part of
    a heartbeat. ``silent``: vendors that were asked and failed; of their cards nothing is known but their names.
    """

    gpus: Optional[list[Gpu]] = None
    stats: list[GpuStats] = field(default_factory=list)
    failures: list[GpuCollectFailure] = field(default_factory=list)
    collector_error: Optional[str] = None
    detection: list[GpuDetection] = field(default_factory=list)
    capabilities: list[GpuCapability] = field(default_factory=list)
    topology: Optional[GpuTopology] = None
    source: str = NO_SOURCE
    holders: Optional[list[GpuHolder]] = None
    notes: list[GpuNote] = field(default_factory=list)
    tells: dict[str, dict[str, Any]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    def gpu(self, uuid: str) -> Optional[Gpu]:
        return next((gpu for gpu in self.gpus or [] if gpu.uuid == uuid), None)


class Inventory:
    """Finds the vendor, then collects every ``interval_s``. :meth:`snapshot` never blocks.

    ``on_first`` is called once, when the first round is done. ``mode``: ``first`` or ``all`` vendors. A node without
    real cards, and one that takes those of all vendors, looks for more again and again. ``remembered``: what was known
    before, for who keeps nothing (``state_dir`` None).
    """

    def __init__(
        self,
        detectors: list[Detector],
        runner: ToolRunner,
        *,
        node_id: str,
        state_dir: Optional[Path],
        mode: str = "first",
        virtual: int = 1,
        interval_s: float = INTERVAL_S,
        on_first: Callable[[], None] = lambda: None,
        looks: Optional[Looks] = None,
        remembered: Optional[Remembered] = None,
    ) -> None:
        self._detectors = detectors
        self._runner = runner
        self._node_id = node_id
        self._state_dir = state_dir
        self._mode = mode
        self._virtual = virtual
        self._on_first = on_first
        self._lock = threading.Lock()
        self._detections: dict[str, Detection] = {}
        self._looks = looks or Looks()
        self._collected = False
        self._remembered = self._load() if remembered is None else remembered
        stored = [detector.vendor for detector in detectors if detector.vendor in self._remembered.vendors]
        self._vendors = stored if mode == "all" else stored[:1]
        self._snapshot = GpuSnapshot(gpus=list(self._remembered.gpus) or None)
        self.loop = Loop("inventory", interval_s, self.round, deadline_s=ROUND_DEADLINE_S)

    def start(self) -> None:
        self.loop.start()

    def stop(self) -> None:
        """No further round; ends the children."""
        self.loop.stop()
        for detector in self._detectors:
            detector.close()

    def snapshot(self) -> GpuSnapshot:
        with self._lock:
            return self._snapshot

    def stuck_tools(self) -> list[str]:
        """Tools with a child that is stuck in the kernel."""
        return self._runner.stuck()

    def remembered(self) -> Remembered:
        """The cards known by now, and those that are gone."""
        with self._lock:
            return self._remembered

    def round(self, *, all_vendors: bool = False) -> None:
        """Detect if no vendor is known, or further ones are wanted; collect from those that are known; publish.
        ``all_vendors``: ask the others in any case, to tell of them."""
        if ((not self._vendors or self._mode == "all") and self._looks.due()) or all_vendors:
            self._detect()
        snapshot = self._collect()
        with self._lock:
            self._snapshot = snapshot
        if not self._collected:
            self._collected = True
            self._on_first()

    def _detect(self) -> None:
        """Ask the vendors that are not known yet, side by side; the order decides between those that answer."""
        asked = [detector for detector in self._detectors if detector.vendor not in self._vendors]
        with ThreadPoolExecutor(max(1, len(asked)), thread_name_prefix="detect") as pool:
            answers = {detector.vendor: answer for detector, answer in zip(asked, pool.map(_detected, asked))}
        self._detections.update(answers)
        found = [vendor for vendor, answer in answers.items() if answer.found]
        if self._mode != "all":
            found = [] if self._vendors else found[:1]
        for vendor in found:
            log.info("cards of %s: %s", vendor, answers[vendor].why)
        self._vendors = [one.vendor for one in self._detectors if one.vendor in (*found, *self._vendors)]
        self._looks.looked(broken=any(answer.present and not answer.found for answer in answers.values()))

    def _collect(self) -> GpuSnapshot:
        if not self._vendors:
            return self._without_cards()
        gpus: list[Gpu] = []
        parts: list[Cards] = []
        errors = self._silent()
        silent: list[str] = []
        for detector in self._detectors:
            if detector.vendor not in self._vendors:
                continue
            known = [gpu for gpu in self._remembered.gpus if gpu.vendor == detector.vendor]
            try:
                cards = detector.collect(known)
                if known and not cards.gpus:
                    raise CollectorError(f"{cards.source or detector.vendor} lists no card; {len(known)} were known")
            except CollectorError as error:
                errors.append(str(error))
                silent.append(detector.vendor)
                gpus.extend(known)
                self._note(detector.vendor, str(error))
            else:
                parts.append(cards)
                gpus.extend(cards.gpus)
                self._note(detector.vendor, f"{cards.source} answers with {len(cards.gpus)} cards")
        self._remember(gpus)
        domains = [domain for cards in parts if cards.topology for domain in cards.topology.nvlink_domains]
        numa = {uuid: node for cards in parts if cards.topology for uuid, node in cards.topology.numa.items()}
        return GpuSnapshot(
            gpus=gpus if gpus or not errors else None,
            stats=[stats for cards in parts for stats in cards.stats],
            failures=[failure for cards in parts for failure in cards.failures],
            collector_error="; ".join(errors) or None,
            detection=self._detection(),
            capabilities=[capability for cards in parts for capability in cards.capabilities],
            topology=GpuTopology(domains, numa) if any(cards.topology for cards in parts) else None,
            source="+".join(cards.source for cards in parts) or NO_SOURCE,
            holders=_together([cards.holders for cards in parts]),
            notes=[note for cards in parts for note in cards.notes],
            tells={**self._told(gpus), **{uuid: words for cards in parts for uuid, words in cards.tells.items()}},
            silent=tuple(silent),
        )

    def _told(self, gpus: list[Gpu]) -> dict[str, dict[str, Any]]:
        """What was last told of cards that are still listed: of those that do not answer there is nothing newer."""
        before = self.snapshot().tells
        return {gpu.uuid: before[gpu.uuid] for gpu in gpus if gpu.uuid in before}

    def _without_cards(self) -> GpuSnapshot:
        """No vendor answers with cards: virtual ones, unless some vendor is here but fails."""
        broken = self._silent()
        if broken:
            return GpuSnapshot(collector_error="; ".join(broken), detection=self._detection())
        cards = virtual_cards(self._virtual, self._node_id)
        return GpuSnapshot(gpus=cards.gpus, detection=self._detection(), source=VIRTUAL if cards.gpus else "none")

    def _silent(self) -> list[str]:
        """Why vendors do not answer that are here and wanted: on a node that takes the first one's cards, as long as
        it has none."""
        if self._vendors and self._mode != "all":
            return []
        unknown = {name: answer for name, answer in self._detections.items() if name not in self._vendors}
        return [answer.why for answer in unknown.values() if answer.present]

    def _note(self, vendor: str, why: str) -> None:
        self._detections[vendor] = Detection(True, True, why)

    def _detection(self) -> list[GpuDetection]:
        lines = []
        for detector in self._detectors:
            answer = self._detections.get(detector.vendor)
            if answer is not None:
                lines.append(
                    GpuDetection(detector.vendor, answer.found, answer.why, detector.evidence, detector.loss_detection)
                )
        return lines

    def _load(self) -> Remembered:
        """Vendors and cards of an earlier start."""
        if self._state_dir is None:
            return Remembered()
        try:
            return read_remembered(self._state_dir)
        except CannotRead as error:
            log.warning("%s; the cards are looked for anew", error)
            return Remembered()

    def _remember(self, gpus: list[Gpu]) -> None:
        before = self._remembered
        now = before.after(gpus, self._vendors, time.time())
        if (now.gpus, now.gone) == (before.gpus, before.gone):
            return
        with self._lock:
            self._remembered = now
        if self._state_dir is None:
            return
        try:
            write_durably(self._state_dir / FILE, as_kept(now))
        except StateError as error:
            log.warning("the cards are not kept for the next start: %s", error)


def _together(lists: list[Optional[list[GpuHolder]]]) -> Optional[list[GpuHolder]]:
    """What those say that can tell; None when none can."""
    told = [holders for holders in lists if holders is not None]
    return [holder for holders in told for holder in holders] if told else None


def _detected(detector: Detector) -> Detection:
    try:
        return detector.detect()
    except Exception as error:  # one vendor's module must not hide the others
        log.exception("the detector of %s failed", detector.vendor)
        return Detection(False, True, f"its detector failed: {error}")
