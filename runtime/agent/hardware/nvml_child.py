"""The child process that talks to NVML, so that a driver that hangs takes nothing else with it.

It reads one word a line from standard input and answers each with one line of JSON: ``collect`` reads all
cards, ``wide`` the same with what changes seldom (links), ``release`` closes the library (MIG changes
need that). Values that cannot be read are null; a card whose handle fails is reported with NVML's code. Nothing but
the standard library and pynvml is imported here, and the parent gives all numbers their meaning.

A card: ``index``, ``uuid``, ``name``, ``memory_total`` and ``memory_used`` (bytes), ``utilization`` (percent),
``temperature`` (degrees Celsius), ``power_mw``, ``pci_bus_id``, ``capability``, ``mig`` and ``mig_pending`` (null: not
known, false: off, or the card knows no MIG), ``slices``, ``processes`` (``pid``, ``name``, ``kind`` C, G or M,
``memory`` in bytes, ``gi_id``, ``ci_id``; null: they cannot be listed), ``ecc`` (uncorrected errors since the driver
was loaded), ``remapped`` (``correctable``, ``uncorrectable``, ``pending``, ``failure``); by ``wide`` also ``links``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable, Optional

LIBRARY = "libnvidia-ml.so.1"
CARD_FAILURES = {15: "GPU is lost", 16: "GPU requires reset", 999: "unknown error for its handle"}
"""NVML codes that speak of the card itself; every other code of a getter only leaves the value unread."""

NOT_OFFERED = (3, 13)
"""The card, or the library, does not know what was asked for: an answer, not a failure."""

MAX_LINKS = 18
PROCESS_LISTS = (
    ("C", "nvmlDeviceGetComputeRunningProcesses"),
    ("M", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ("G", "nvmlDeviceGetGraphicsRunningProcesses"),
)
NO_INSTANCE = 0xFFFFFFFF
FIRST_TO_DIE = "500"
"""For the kernel when memory runs out: this child before the agent, whose own immunity it was born with."""


class Reader:
    """Holds the library open between collections; after any failure it is opened anew."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._open = False

    def release(self) -> None:
        if self._open:
            self._open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass

    def collect(self, wide: bool) -> dict[str, Any]:
        """``{"cards": [...], "failures": [...], "driver": ...}`` or ``{"error": code, "text": ...}``."""
        nvml = self._nvml
        try:
            if not self._open:
                nvml.nvmlInit()
                self._open = True
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self.release()
            return {"error": int(error.value), "text": str(error)}
        cards: list[dict[str, Any]] = []
        failures: list[dict[str, Any]] = []
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                cards.append(self._card(handle, index, wide))
            except nvml.NVMLError as error:
                code = int(error.value)
                failures.append({"index": index, "code": code, "text": CARD_FAILURES.get(code, str(error))})
        driver = self._value(nvml.nvmlSystemGetDriverVersion)
        if failures:
            self.release()
        return {"cards": cards, "failures": failures, "driver": driver}

    def _value(self, getter: Callable[..., Any], *arguments: Any) -> Any:
        """The getter's answer; None when it has none. What condemns the card goes up."""
        try:
            value = getter(*arguments)
        except self._nvml.NVMLError as error:
            if int(error.value) in CARD_FAILURES:
                raise
            return None
        except (AttributeError, UnicodeDecodeError):  # a library older than the binding
            return None
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def _aside(self, getter: Callable[..., Any], *arguments: Any) -> Any:
        """As :meth:`_value`, for what says nothing of the card's health whatever it fails with."""
        try:
            return self._value(getter, *arguments)
        except self._nvml.NVMLError:
            return None

    def _card(self, handle: Any, index: int, wide: bool) -> dict[str, Any]:
        nvml, value = self._nvml, self._value
        memory = value(nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = value(nvml.nvmlDeviceGetUtilizationRates, handle)
        pci = value(nvml.nvmlDeviceGetPciInfo, handle)
        mig = self._mig_mode(handle)
        power = value(nvml.nvmlDeviceGetPowerUsage, handle)
        capability = value(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        card = {
            "index": index,
            "uuid": value(nvml.nvmlDeviceGetUUID, handle),
            "name": value(nvml.nvmlDeviceGetName, handle),
            "memory_total": None if memory is None else int(memory.total),
            "memory_used": None if memory is None else int(memory.used),
            "utilization": None if rates is None else int(rates.gpu),
            "temperature": value(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "power_mw": power,
            "pci_bus_id": None if pci is None else _decoded(pci.busId),
            "capability": None if capability is None else f"{capability[0]}.{capability[1]}",
            "mig": None if mig is None else mig[0],
            "mig_pending": None if mig is None else mig[1],
            "slices": self._slices(handle) if mig is not None and mig[0] else [],
            "processes": self._processes(handle),
            "remapped": self._remapped(handle),
            "ecc": self._uncorrected(handle),
        }
        if wide:
            card["links"] = self._links(handle)
        return card

    def _remapped(self, handle: Any) -> Optional[dict[str, int]]:
        rows = self._aside(self._nvml.nvmlDeviceGetRemappedRows, handle)
        names = ("correctable", "uncorrectable", "pending", "failure")
        return None if rows is None else dict(zip(names, (int(row) for row in rows)))

    def _uncorrected(self, handle: Any) -> Any:
        kind, counter = self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._nvml.NVML_VOLATILE_ECC
        return self._aside(self._nvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter)

    def _mig_mode(self, handle: Any) -> Optional[tuple[bool, bool]]:
        """(now, after the next reset); a card without MIG has it off."""
        try:
            now, pending = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError as error:
            code = int(error.value)
            if code in CARD_FAILURES:
                raise
            return (False, False) if code in NOT_OFFERED else None
        except AttributeError:
            return (False, False)
        return bool(now), bool(pending)

    def _processes(self, handle: Any) -> Optional[list[dict[str, Any]]]:
        """None when not even the computing ones can be listed."""
        found: dict[int, dict[str, Any]] = {}
        for kind, name in PROCESS_LISTS:
            entries = self._entries(name, handle)
            if entries is None:
                if kind == "C":
                    return None
                continue
            for one in entries:
                gi_id, ci_id = getattr(one, "gpuInstanceId", None), getattr(one, "computeInstanceId", None)
                found.setdefault(
                    int(one.pid),
                    {
                        "pid": int(one.pid),
                        "name": self._aside(self._nvml.nvmlSystemGetProcessName, one.pid),
                        "kind": kind,
                        "memory": None if one.usedGpuMemory is None else int(one.usedGpuMemory),
                        "gi_id": None if gi_id == NO_INSTANCE else gi_id,
                        "ci_id": None if ci_id == NO_INSTANCE else ci_id,
                    },
                )
        return list(found.values())

    def _entries(self, name: str, handle: Any) -> Optional[list[Any]]:
        """By the newest form of the call that the library knows."""
        for version in ("_v3", "_v2"):
            entries = self._aside(getattr(self._nvml, name + version, _missing), handle)
            if entries is not None:
                return list(entries)
        return None

    def _slices(self, handle: Any) -> list[dict[str, Any]]:
        nvml, value = self._nvml, self._value
        slices = []
        for number in range(value(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = value(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if part is None:
                continue
            memory = value(nvml.nvmlDeviceGetMemoryInfo, part)
            slices.append(
                {
                    "uuid": value(nvml.nvmlDeviceGetUUID, part),
                    "name": value(nvml.nvmlDeviceGetName, part),
                    "gi_id": value(nvml.nvmlDeviceGetGpuInstanceId, part),
                    "ci_id": value(nvml.nvmlDeviceGetComputeInstanceId, part),
                    "memory_total": None if memory is None else int(memory.total),
                    "memory_used": None if memory is None else int(memory.used),
                }
            )
        return slices

    def _links(self, handle: Any) -> Optional[list[str]]:
        """PCI bus ids at the other ends of the card's active NVLinks; None when that cannot be asked."""
        nvml, value = self._nvml, self._value
        ends: list[str] = []
        for link in range(MAX_LINKS):
            state = value(nvml.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:
                return ends if link else None
            if not state:
                continue
            remote = value(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if remote is not None:
                ends.append(_decoded(remote.busId))
        return ends


def _missing(*_: Any) -> Any:
    raise AttributeError


def _decoded(text: Any) -> str:
    return text.decode("ascii", "replace") if isinstance(text, bytes) else str(text)


def _give_back_memory() -> None:
    """At the first start on a node Python compiles pynvml; what that took (12 MiB) goes back to the system."""
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own
    if trim is not None:
        trim(0)


def _die_first() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_DIE, "ascii")
    except OSError:
        pass


def main() -> None:
    _die_first()
    import pynvml

    _give_back_memory()
    reader = Reader(pynvml)
    for line in sys.stdin:
        word = line.strip()
        if word == "release":
            reader.release()
            answer: dict[str, Any] = {}
        else:
            answer = reader.collect(wide=word == "wide")
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
