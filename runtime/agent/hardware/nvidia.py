"""NVIDIA cards: NVML first, nvidia-smi where the library is missing; and what kernel log and MPS daemon add."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Callable, Optional

from runtime.agent.hardware.asking import WIDE_EVERY, ask, refuse_missing
from runtime.agent.hardware.detector import FULL, Cards, CollectorError, Detection
from runtime.agent.hardware.failed import with_failed
from runtime.agent.hardware.holders import Places
from runtime.agent.hardware.kmsg import KernelLog
from runtime.agent.hardware.mps import CONTROL, Mps
from runtime.agent.hardware.nvidia_by_smi import SMI, SmiCards
from runtime.agent.hardware.nvml import LIBRARY_FOLDERS, NvmlChild, library_present
from runtime.agent.hardware.nvml_cards import VENDOR, cards_of_nvml, notes_of_nvml, topology_of
from runtime.agent.hardware.nvml_errors import LIBRARY_MISSING, library_version, module_version, sentence
from runtime.agent.hardware.parsers import nvidia_smi
from runtime.agent.hardware.pci import SYSFS, accelerators
from runtime.agent.hardware.tools import ToolRunner, find_command
from runtime.agent.hardware.xid import XidWatch
from runtime.protocol.hardware import Gpu, GpuCapability, GpuCollectFailure, GpuNote, GpuTopology
from runtime.protocol.nodes import CardNote

PCI_VENDOR = "0x10de"
SMI_PLACES = ("/usr/bin/nvidia-smi",)
WSL_DEVICE = Path("/dev/dxg")
NO_TABLE = 1000
"""What a shell says in the tool's place is shorter than any table."""


class Nvidia:
    """``tools``: command name -> path, from the settings. ``use_nvml`` False asks nvidia-smi only.

    ``kernel_lines``: what came into the kernel log since it was called last.
    """

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
        kernel_lines: Optional[Callable[[], Iterable[str]]] = None,
    ) -> None:
        tools = tools or {}
        self._runner = runner
        self._tool_setting = tools.get(SMI)
        self._use_nvml = use_nvml
        self._sysfs = sysfs
        self._nvml_present = nvml_present
        self._child = NvmlChild(runner)
        self._by_tool = SmiCards(self._smi, sysfs)
        self._kernel = KernelLog()
        self._xids = XidWatch(kernel_lines or self._kernel.lines)
        self._mps = Mps(runner, tools.get(CONTROL))
        self._places = Places()
        self._collections = 0
        self._library_gone = False
        self._topology: Optional[GpuTopology] = None

    def detect(self) -> Detection:
        plugged = accelerators(PCI_VENDOR, self._sysfs)
        library = self._use_nvml and self._nvml_present()
        if not library and self._tool() is None:
            if plugged:
                return Detection(False, True, f"{len(plugged)} PCI devices of NVIDIA, but neither NVML nor nvidia-smi")
            return Detection(False, False, "no NVML, no nvidia-smi, no PCI device of NVIDIA")
        try:
            cards = self._read([])
        except CollectorError as error:
            # A library that the linker's list still names, and that is gone, is no sign of a card.
            here = bool(plugged) or not self._library_gone or self._tool() is not None
            return Detection(False, here, str(error))
        if not cards.gpus and not cards.failures:
            return Detection(False, bool(plugged), f"{cards.source} answers and knows no card")
        return Detection(True, True, f"{cards.source} answers with {len(cards.gpus)} cards")

    def collect(self, known: list[Gpu]) -> Cards:
        self._xids.look()
        cards = self._read(known)
        cards = dataclasses.replace(cards, capabilities=with_mps(cards, self._mps.answers()))
        if cards.holders is not None:
            holders = self._places.of(cards.holders)
            if cards.source != SMI and not WSL_DEVICE.exists():
                # Windows' own programs use the card too, and no list under WSL2 shows them.
                holders += self._places.without_process(cards.gpus, cards.stats, holders)
            cards = dataclasses.replace(cards, holders=holders)
        return with_xids(cards, known, self._xids)

    def close(self) -> None:
        self._child.close()
        self._kernel.close()

    def _read(self, known: list[Gpu]) -> Cards:
        if self._use_nvml and self._nvml_present():
            cards = self._by_nvml(known)
            if cards is not None:
                return cards
        return self._by_tool.collect(known)

    def _by_nvml(self, known: list[Gpu]) -> Optional[Cards]:
        """None when the library cannot be loaded after all, and the tool is here."""
        wide = self._collections % WIDE_EVERY == 0  # with the links
        answer = self._child.ask("wide" if wide else "collect")
        if "error" in answer:
            self._library_gone = answer["error"] == LIBRARY_MISSING
            if self._library_gone and self._tool() is not None:
                return None
            raise CollectorError(sentence(answer, module_version(), library_version(list(LIBRARY_FOLDERS))))
        self._collections += 1
        cards = cards_of_nvml(answer, known, self._sysfs)
        if wide:
            self._topology = topology_of(answer["cards"], cards.gpus)
        return dataclasses.replace(cards, topology=self._topology, notes=notes_of_nvml(answer["cards"]))

    def _tool(self) -> Optional[str]:
        return find_command(SMI, setting=self._tool_setting, fixed=SMI_PLACES)

    def _smi(self, arguments: Sequence[str]) -> str:
        tool = self._tool()
        if tool is None:
            raise CollectorError("neither NVML nor nvidia-smi is here")
        text = ask(self._runner, SMI, [tool, *arguments])
        if len(text) < NO_TABLE:
            refuse_missing(SMI, tool, nvidia_smi.parse(list(arguments), text), text)
        return text


def with_mps(cards: Cards, answers: bool) -> list[GpuCapability]:
    """Capabilities with MPS: the daemon answers now, and the card is not cut into slices."""
    told = {capability.uuid: capability for capability in cards.capabilities}
    condemned = {failure.uuid for failure in cards.failures}
    found = []
    for gpu in cards.gpus:
        if gpu.parent_uuid is None and gpu.uuid not in condemned:
            capability = told.get(gpu.uuid, GpuCapability(gpu.uuid))
            found.append(dataclasses.replace(capability, mps_capable=answers and not capability.mig_capable))
    return found


def with_xids(cards: Cards, known: list[Gpu], xids: XidWatch) -> Cards:
    """Condemns the cards that the kernel saw fall off the bus just now, and tells the last word on the others."""
    gpus, failures = list(cards.gpus), list(cards.failures)
    at = {gpu.pci_bus_id: gpu for gpu in gpus if gpu.parent_uuid is None}
    condemned = {failure.uuid for failure in failures}
    for bus_id, reason in xids.condemned().items():
        gpu = at.get(bus_id)
        if gpu is None:
            gpus, failures = with_failed(gpus, failures, known, None, bus_id, reason)
        elif gpu.uuid not in condemned:
            failures.append(GpuCollectFailure(gpu.uuid, gpu.index, reason))
    notes = [
        GpuNote(at[bus_id].uuid, CardNote.XID.value, text) for bus_id, text in xids.notes().items() if bus_id in at
    ]
    return dataclasses.replace(cards, gpus=gpus, failures=failures, notes=[*cards.notes, *notes])
