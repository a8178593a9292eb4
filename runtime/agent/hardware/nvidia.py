"""NVIDIA cards: NVML first, nvidia-smi where the library is missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Optional

from runtime.agent.hardware import nvidia_smi
from runtime.agent.hardware.detector import FULL, Cards, CollectorError, Detection, gpu_class
from runtime.agent.hardware.nvml import NvmlChild, library_present
from runtime.agent.hardware.pci import SYSFS, accelerators, normal_bus_id, numa_node
from runtime.agent.hardware.tools import ToolError, ToolRunner, find_command
from runtime.protocol.heartbeat import Gpu, GpuCapability, GpuCollectFailure, GpuStats, GpuTopology

VENDOR = "nvidia"
PCI_VENDOR = "0x10de"
SMI = "nvidia-smi"
SMI_PLACES = ("/usr/bin/nvidia-smi",)
WIDE_EVERY = 60
"""Links and rarely supported fields are read once in this many collections (5 minutes)."""

MIB = 1024 * 1024
IMPOSSIBLE_POWER_MW = 65_000_000
"""65535 W is what a dead card's power register reads as; with 0 C beside it the card is gone."""


class Nvidia:
    """``tools``: command name -> path, from the settings. ``use_nvml`` False asks nvidia-smi only."""

    vendor = VENDOR
    loss_detection = FULL
    evidence = "fixture"

    def __init__(
        self,
        runner: ToolRunner,
        tools: Optional[dict[str, str]] = None,
        *,
        use_nvml: bool = True,
        sysfs: Path = SYSFS,
        nvml_present: Callable[[], bool] = library_present,
    ) -> None:
        self._runner = runner
        self._tools = tools or {}
        self._use_nvml = use_nvml
        self._sysfs = sysfs
        self._nvml_present = nvml_present
        self._child = NvmlChild(runner)
        self._collections = 0
        self._topology: Optional[GpuTopology] = None
        self._extras: dict[int, nvidia_smi.Row] = {}

    def detect(self) -> Detection:
        plugged = accelerators(PCI_VENDOR, self._sysfs)
        library = self._use_nvml and self._nvml_present()
        tool = self._tool()
        if not library and tool is None:
            if plugged:
                return Detection(False, True, f"{len(plugged)} PCI devices of NVIDIA, but neither NVML nor nvidia-smi")
            return Detection(False, False, "no NVML, no nvidia-smi, no PCI device of NVIDIA")
        try:
            cards = self.collect([])
        except CollectorError as error:
            return Detection(False, True, str(error))
        if not cards.gpus and not cards.failures:
            return Detection(False, bool(plugged), f"{cards.source} answers and knows no card")
        return Detection(True, True, f"{cards.source} answers with {len(cards.gpus)} cards")

    def collect(self, known: list[Gpu]) -> Cards:
        if self._use_nvml and self._nvml_present():
            return self._by_nvml(known)
        return self._by_smi(known)

    def close(self) -> None:
        self._child.close()

    def _tool(self) -> Optional[str]:
        return find_command(SMI, setting=self._tools.get(SMI), fixed=SMI_PLACES)

    # NVML

    def _by_nvml(self, known: list[Gpu]) -> Cards:
        wide = self._collections % WIDE_EVERY == 0
        self._collections += 1
        answer = self._child.ask("wide" if wide else "collect")
        if "error" in answer:
            raise CollectorError(f"NVML: {answer.get('text')} (code {answer['error']})")
        cards = cards_of_nvml(answer, known, self._sysfs)
        if wide:
            self._topology = topology_of(answer["cards"], cards.gpus)
        return dataclasses.replace(cards, topology=self._topology)

    # nvidia-smi

    def _by_smi(self, known: list[Gpu]) -> Cards:
        tool = self._tool()
        if tool is None:
            raise CollectorError("neither NVML nor nvidia-smi is here")
        rows = nvidia_smi.parse_csv(self._smi(tool, nvidia_smi.QUERY))
        if self._collections % WIDE_EVERY == 0:
            self._extras = self._read_extras(tool)
        self._collections += 1
        return cards_of_smi(rows, self._extras, known, self._sysfs)

    def _smi(self, tool: str, query: tuple[str, ...]) -> str:
        try:
            output = self._runner.run(SMI, [tool, *query])
        except ToolError as error:
            raise CollectorError(str(error)) from None
        text = output.stdout + "\n" + output.stderr
        if output.status != 0 and not text.strip():
            raise CollectorError(f"{SMI} ended with status {output.status} and no word")
        return text

    def _read_extras(self, tool: str) -> dict[int, nvidia_smi.Row]:
        try:
            rows = nvidia_smi.parse_csv(self._smi(tool, nvidia_smi.EXTRA_QUERY))
        except CollectorError:
            return {}  # an old driver: the fields are unknown, the cards are not
        return {row.index: row for row in rows if row.index is not None}


def cards_of_nvml(answer: dict[str, Any], known: list[Gpu], sysfs: Path = SYSFS) -> Cards:
    """The child's numbers with their meaning; ``known`` names the cards that no longer tell their uuid."""
    gpus: list[Gpu] = []
    stats: list[GpuStats] = []
    failures: list[GpuCollectFailure] = []
    capabilities: list[GpuCapability] = []
    for card in answer["cards"]:
        bus_id = normal_bus_id(card["pci_bus_id"])
        uuid = card["uuid"] or bus_id or f"{VENDOR}-{card['index']}"
        total = _mib(card["memory_total"])
        gpu = Gpu(
            uuid=uuid,
            vendor=VENDOR,
            index=card["index"],
            model=card["name"],
            gpu_class=gpu_class(VENDOR, card["name"], total),
            memory_total_mib=total,
            pci_bus_id=bus_id,
            numa_node=numa_node(bus_id, sysfs),
            compute_capability=card["capability"],
            driver_version=answer.get("driver"),
        )
        gpus.append(gpu)
        power, temperature = card["power_mw"], card["temperature"]
        if power is not None and power >= IMPOSSIBLE_POWER_MW and temperature == 0:
            reason = "impossible values together (65535 W at 0 C)"
            failures.append(GpuCollectFailure(uuid, card["index"], reason))
        else:
            stats.append(
                GpuStats(
                    uuid=uuid,
                    index=card["index"],
                    temperature_c=temperature,
                    utilization_pct=card["utilization"],
                    memory_used_mib=_mib(card["memory_used"]),
                    power_w=None if power is None else round(power / 1000, 2),
                )
            )
        if card["mig"] is not None:
            capabilities.append(GpuCapability(uuid, mig_capable=card["mig"]))
        for part in card["slices"]:
            gpus.append(_slice(gpu, part))
            if part["memory_used"] is not None:
                stats.append(GpuStats(gpus[-1].uuid, card["index"], memory_used_mib=_mib(part["memory_used"])))
    for failure in answer["failures"]:
        reason = f"{failure['text']} (NVML code {failure['code']})"
        gpus, failures = _with_failed(gpus, failures, known, failure["index"], None, reason)
    return Cards(gpus, stats, failures, capabilities, source="nvml")


def _slice(parent: Gpu, part: dict[str, Any]) -> Gpu:
    name = part["name"] or ""
    profile = name.rpartition("MIG ")[2].strip() if "MIG " in name else None
    total = _mib(part["memory_total"])
    return Gpu(
        uuid=part["uuid"] or f"{parent.uuid}/{part['gi_id']}/{part['ci_id']}",
        vendor=VENDOR,
        index=parent.index,
        model=parent.model,
        gpu_class=gpu_class(VENDOR, f"{parent.model} MIG {profile}" if profile else parent.model, total),
        memory_total_mib=total,
        pci_bus_id=parent.pci_bus_id,
        numa_node=parent.numa_node,
        compute_capability=parent.compute_capability,
        driver_version=parent.driver_version,
        parent_uuid=parent.uuid,
        profile=profile,
        gi_id=part["gi_id"],
        ci_id=part["ci_id"],
    )


def cards_of_smi(
    rows: list[nvidia_smi.Row], extras: dict[int, nvidia_smi.Row], known: list[Gpu], sysfs: Path = SYSFS
) -> Cards:
    """nvidia-smi's rows as cards; a row that condemns its card keeps what was known of it."""
    gpus: list[Gpu] = []
    stats: list[GpuStats] = []
    failures: list[GpuCollectFailure] = []
    capabilities: list[GpuCapability] = []
    for row in rows:
        if row.failure is not None:
            gpus, failures = _with_failed(gpus, failures, known, row.index, row.bus_id or row.uuid, row.failure)
            continue
        uuid = row.uuid or row.bus_id or f"{VENDOR}-{row.index}"
        extra = extras.get(-1 if row.index is None else row.index, nvidia_smi.Row())
        gpus.append(
            Gpu(
                uuid=uuid,
                vendor=VENDOR,
                index=row.index,
                model=row.name,
                gpu_class=gpu_class(VENDOR, row.name, row.memory_total_mib),
                memory_total_mib=row.memory_total_mib,
                pci_bus_id=row.bus_id,
                numa_node=numa_node(row.bus_id, sysfs),
                compute_capability=extra.compute_capability,
                driver_version=row.driver_version,
            )
        )
        stats.append(
            GpuStats(uuid, row.index, row.temperature_c, row.utilization_pct, row.memory_used_mib, row.power_w)
        )
        if extra.mig_enabled is not None:
            capabilities.append(GpuCapability(uuid, mig_capable=extra.mig_enabled))
    return Cards(gpus, stats, failures, capabilities, source=SMI)


def _with_failed(
    gpus: list[Gpu],
    failures: list[GpuCollectFailure],
    known: list[Gpu],
    index: Optional[int],
    key: Optional[str],
    reason: str,
) -> tuple[list[Gpu], list[GpuCollectFailure]]:
    """Both lists with the failed card: found again in the last inventory by bus id or uuid, else by index.

    The index is trusted only while no card that answers carries that old card's uuid: indices move.
    """
    answering = {gpu.uuid for gpu in gpus}
    old = [gpu for gpu in known if gpu.parent_uuid is None and gpu.uuid not in answering]
    if key is not None:
        matches = [gpu for gpu in old if key in (gpu.uuid, gpu.pci_bus_id)]
    else:
        matches = [gpu for gpu in old if gpu.index == index]
    if len(matches) != 1:
        return gpus, [*failures, GpuCollectFailure(key, index, reason)]
    card = matches[0]
    slices = [gpu for gpu in known if gpu.parent_uuid == card.uuid]
    return [*gpus, card, *slices], [*failures, GpuCollectFailure(card.uuid, card.index, reason)]


def topology_of(cards: list[dict[str, Any]], gpus: list[Gpu]) -> GpuTopology:
    """Cards that share an NVLink end (each other, or a switch) are one domain; a card that has no links, or
    does not tell, is in none."""
    domains: list[tuple[set[str], set[Optional[str]]]] = []
    for card in cards:
        if not card["uuid"] or not card.get("links"):
            continue
        ends = {normal_bus_id(end) for end in (*card["links"], card["pci_bus_id"])}
        touching = [domain for domain in domains if domain[1] & ends]
        merged = ({card["uuid"]}.union(*(d[0] for d in touching)), ends.union(*(d[1] for d in touching)))
        domains = [domain for domain in domains if domain not in touching] + [merged]
    numa = {gpu.uuid: gpu.numa_node for gpu in gpus if gpu.numa_node is not None}
    return GpuTopology(sorted(sorted(members) for members, _ in domains if len(members) > 1), numa)


def _mib(size: Optional[int]) -> Optional[int]:
    return None if size is None else size // MIB
