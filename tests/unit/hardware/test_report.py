"""The inventory for people: links, holders, NUMA, and what the node cannot do, each known, none, or not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.agent.hardware.report import as_table, report_of
from runtime.protocol.hardware import Gpu, GpuCollectFailure, GpuHolder, GpuTopology

CONTAINER = "ab" * 32
ONE = Gpu("GPU-one", "nvidia", 0, "H100", "nvidia-h100-80g", 81559, "00000000:17:00.0", 1)
TWO = replace(ONE, uuid="GPU-two", index=1, numa_node=None, memory_total_mib=None)
SLICE = replace(ONE, uuid="MIG-a", parent_uuid="GPU-one", profile="1g.10gb")
VIRTUAL = Gpu("virtual-0", "virtual", 0)


def shown(*gpus: Gpu, **said: Any) -> tuple[list[str], list[str]]:
    """(lines of the table, what the node cannot do)."""
    report = report_of(GpuSnapshot(gpus=list(gpus), source="nvml", **said))
    lines = as_table(report).split("\n")
    assert lines[len(lines) - len(report["cannot"]) :] == report["cannot"]
    return lines, report["cannot"]


@pytest.mark.parametrize(
    ("topology", "line", "cannot"),
    [
        (GpuTopology([["GPU-one", "GPU-two"]]), "NVLink domain: card 0, card 1", None),
        (GpuTopology([["GPU-two", "GPU-gone", "GPU-one"]]), "NVLink domain: card 0, card 1, GPU-gone", None),
        (GpuTopology([["GPU-one", "GPU-gone"]]), "NVLink domain: card 0, GPU-gone", None),
        (GpuTopology(), "NVLink: none between the cards", "no NVLink"),
        (GpuTopology([["GPU-one"], ["GPU-two"]]), "NVLink domain: card 1", "no NVLink"),
        (None, "NVLink: not known", "NVLink not known"),
    ],
)
def test_links(topology: Optional[GpuTopology], line: str, cannot: Optional[str]) -> None:
    lines, told = shown(ONE, TWO, topology=topology)
    assert line in lines
    assert [one.partition(":")[0] for one in told if "NVLink" in one] == ([cannot] if cannot else [])


@pytest.mark.parametrize("gpus", [(ONE,), (ONE, SLICE), (VIRTUAL, replace(VIRTUAL, uuid="virtual-1")), ()])
def test_fewer_than_two_cards_have_no_links(gpus: tuple[Gpu, ...]) -> None:
    lines, told = shown(*gpus)
    assert not any("NVLink" in line for line in (*lines, *told))


@pytest.mark.parametrize(
    ("holders", "wanted"),
    [
        (None, ["holders of cards: not known"]),
        ([], ["holders of cards: none"]),
        (
            [
                GpuHolder("GPU-one", 71, "python3", 512, CONTAINER),
                GpuHolder("MIG-a", 72),
                GpuHolder("GPU-two", None, None, 2048, ours=False),
            ],
            [
                f"card 0 is held by python3 (process 71, 512 MiB, in {CONTAINER[:40]})",
                "MIG-a is held by a program (process 72)",
                "card 1 is held by no process that is seen: 2048 MiB in use",
            ],
        ),
    ],
)
def test_holders(holders: Optional[list[GpuHolder]], wanted: list[str]) -> None:
    lines, _ = shown(ONE, SLICE, TWO, holders=holders)
    assert [line for line in lines if "held" in line or "holders" in line] == wanted
    assert not any("hold" in line for line in shown(VIRTUAL, holders=holders)[0])


def test_numa_and_memory_that_are_not_known() -> None:
    lines, told = shown(ONE, TWO)
    at = lines[0].index("NUMA")
    assert [line[at : at + 4].strip() for line in lines[:3]] == ["NUMA", "1", "-"]
    assert [one for one in told if "min_memory_mib" in one] == [
        "memory of card 1 not known: cannot run tasks that ask for min_memory_mib"
    ]


def test_what_is_said_of_a_card_stands_below_it() -> None:
    """A long word on its health once moved the names of all cards far to the right."""
    reason = "Unable to determine the device handle for GPU 0000:17:00.0: GPU is lost. Reboot the system to recover it"
    lines, _ = shown(ONE, TWO, failures=[GpuCollectFailure("GPU-one", 0, reason)])
    assert lines[1].split()[-2:] == ["bad", "GPU-one"] and lines[2].strip() == reason
    assert lines[3].split()[-2:] == ["ok", "GPU-two"]
    assert lines[0].index("uuid") == lines[1].index("GPU-one") == lines[3].index("GPU-two") < 100
