"""``nvidia-smi topo -m``: how each card reaches each other card and each network card.

Cells are separated by tabs and may be empty; where the tabs were lost on the way, by blanks. The header is underlined
even in a pipe. NIC numbers are those of the legend below the matrix, not those in the devices' names.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from runtime.agent.hardware.parsers import tables

_GPU, _NIC, _NVLINK = re.compile(r"GPU\d+"), re.compile(r"NIC\d+"), re.compile(r"NV\d+")
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*")
_NEAR = ("PIX", "PXB")
"""Under the same PCIe switch, or under switches of one host bridge."""
_NOTHING = ("", "N/A")

Matrix = dict[str, dict[str, str]]


def is_matrix(text: str) -> bool:
    return any(_titles(line) for line in tables.lines(text))


def parse(text: str) -> dict[str, Any]:
    """``{"links": {GPU: {GPU: kind}}, "nic_links": {GPU: {NIC: kind}}, "gpus", "nics", "gpu_link_kinds",
    "nvlink_all_to_all", "affinity": {GPU: {"cpu_affinity", "numa_affinity"}}, "near_nics": {GPU: [name]},
    "nic_names": {NIC: name}}``. A network card without a line in the legend keeps its number for a name. Both
    counts are null for a text without a matrix."""
    titles: list[str] = []
    rows: dict[str, dict[str, str]] = {}
    names: dict[str, str] = {}
    for line in tables.lines(text):
        found, legend = _titles(line), _LEGEND.fullmatch(line)
        if found:
            titles, rows, names = found, {}, {}  # asked once more: the last answer counts
        elif legend is not None:
            names[legend[1]] = legend[2]
        elif titles:
            cells = _cells(line)
            if _GPU.fullmatch(cells[0]) or _NIC.fullmatch(cells[0]):
                rows[cells[0]] = dict(zip(titles, cells[1:]))
    gpus = [name for name in rows if _GPU.fullmatch(name)]
    nics = [title for title in titles if _NIC.fullmatch(title)]
    links = _kinds(rows, gpus, gpus)
    nic_links = _kinds(rows, gpus, nics)
    kinds = {kind for row in links.values() for kind in row.values()}
    return {
        "gpus": len(gpus) or None,
        "nics": len(nics) if gpus else None,
        "links": links,
        "nic_links": nic_links,
        "gpu_link_kinds": sorted(kinds),
        "nvlink_all_to_all": _all_to_all(links),
        "affinity": {gpu: _affinity(rows[gpu]) for gpu in gpus},
        "near_nics": {
            gpu: [names.get(nic, nic) for nic, kind in nic_links.get(gpu, {}).items() if kind in _NEAR] for gpu in gpus
        },
        "nic_names": names,
    }


def _titles(line: str) -> list[str]:
    """Of the header; its first cell is empty. A "NUMA Affinity" is followed by one more empty cell."""
    cells = _cells(line)
    if len(cells) < 2 or cells[0] or not _GPU.fullmatch(cells[1]):
        return []
    return cells[1:]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in (line.split("\t") if "\t" in line else re.split(r"\s{2,}", line))]


def _kinds(rows: Matrix, gpus: list[str], others: list[str]) -> Matrix:
    found = {
        gpu: {other: rows[gpu][other] for other in others if other != gpu and rows[gpu].get(other, "") not in _NOTHING}
        for gpu in gpus
    }
    return {gpu: row for gpu, row in found.items() if row}


def _all_to_all(links: Matrix) -> Optional[bool]:
    """Whether every pair of cards has NVLink; None with fewer than two cards that tell."""
    kinds = [kind for row in links.values() for kind in row.values()]
    return all(_NVLINK.fullmatch(kind) for kind in kinds) if kinds else None


def _affinity(row: dict[str, str]) -> dict[str, Optional[str]]:
    cpus, numa = row.get("CPU Affinity", ""), row.get("NUMA Affinity", "")
    return {
        "cpu_affinity": None if cpus in _NOTHING else cpus,
        "numa_affinity": None if numa in _NOTHING else numa,
    }
