"""Moore Threads' ``mthreads-gmi``: a table of three lines a card with bars between the cells only.

Its errors come on standard output with exit status 0.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import absent, tables
from runtime.agent.hardware.pci import printed_bus_id
from runtime.agent.hardware.reading import CardReading, Complaint, Reading
from runtime.agent.hardware.values import number, ordinal, word

_VERSIONS = re.compile(r"mthreads-gmi:\s*(\d\S*)(?:.*Driver Version:\s*(\S+))?")
_PROCESS = re.compile(r"\s*(?P<index>\d{1,9})\s+(?P<pid>\d{1,9})\s+" + tables.NAME_AND_MEMORY)
_NO_PROCESSES = re.compile(r"\s*No running process", re.IGNORECASE)
_NO_DEVICE = re.compile(r"(?:Error:\s*)?(No MT GPU device found\.?)")
_FAILED = re.compile(r"(?:Error:\s*)?(failed to initialize mtml\b.*)", re.IGNORECASE)


class _Table:
    def __init__(self, version: str, driver: Optional[str]) -> None:
        self.version, self.driver = version, driver
        self.cards: dict[Optional[int], CardReading] = {}
        self.parts: list[list[str]] = []
        self.processes: Optional[list[dict[str, Any]]] = None
        self.titled = False

    def take(self, line: str) -> None:
        if line.startswith("Processes"):
            self._close()
            self.processes = []
        elif self.processes is not None:
            found = _PROCESS.fullmatch(line)
            if found is not None:
                self.processes.append(tables.process(found))
        else:
            self._take_row(tables.cells(line), line)

    def _take_row(self, row: Optional[list[str]], line: str) -> None:
        if row is None:
            return
        head = row[0].split()
        if head[:1] == ["ID"]:
            self.titled = True
        elif self.titled and len(row) > 2 and head and ordinal(head[0]) is not None and not line.startswith(" "):
            self._close()
            self.parts = [row]
        elif self.parts:
            self.parts.append(row)

    def _close(self) -> None:
        if self.parts:
            card = _card(self.parts)
            self.cards[card.index] = card
        self.parts = []

    def reading(self) -> Reading:
        self._close()
        devices = len(self.cards) if self.titled else None
        more = {"gmi_version": self.version}
        return Reading(
            list(self.cards.values()), devices, driver_version=self.driver, processes=self.processes, more=more
        )


def parse(arguments: list[str], text: str) -> Reading:
    """What a text of ``mthreads-gmi`` says."""
    lines = tables.lines(text)
    table: Optional[_Table] = None
    for line in lines:
        found = _VERSIONS.search(line)
        if found is not None:
            table = _Table(found[1], found[2])  # asked once more: the last answer counts
        elif table is not None:
            table.take(line)
    if table is not None:
        return table.reading()
    for line in lines:
        none, failed = _NO_DEVICE.search(line), _FAILED.search(line)
        if none is not None:
            return Reading(devices=0, errors=[Complaint(none[1], "no_devices")])
        if failed is not None:
            return Reading(errors=[Complaint(failed[1].strip(), "not_initialized")])
    missing = absent.complaint(lines)
    return Reading(errors=[missing] if missing else [])


def _card(parts: list[list[str]]) -> CardReading:
    index, name = (*parts[0][0].split(maxsplit=1), "", "")[:2]
    load = re.split(r"\s+", parts[0][2], maxsplit=1)
    used, total = tables.used_total_mib(load[1] if len(load) > 1 else None)
    second = parts[1] if len(parts) > 1 and len(parts[1]) > 2 else ["", "", ""]
    more: dict[str, Any] = {"pcie_width": word(second[1]), "mpc_capable": word((second[2].split() or [""])[-1])}
    if len(parts) > 2:
        more["ecc_mode"] = word(parts[2][-1])
    return CardReading(
        index=ordinal(index),
        name=word(name),
        bus_id=printed_bus_id(parts[0][1]),
        memory_total_mib=total,
        memory_used_mib=used,
        utilization_pct=number(load[0]),
        temperature_c=number((second[2].split() or [""])[0]),
        more=more,
    )
