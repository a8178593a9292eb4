"""InfiniBand ports from a folder like the kernel's: what carries data, what does not and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware.infiniband import adapters
from runtime.agent.hardware.infiniband.ports import Port
from runtime.agent.hardware.report import add_infiniband

UP = Port("ibx_0", 1, state="active", phys_state="LinkUp", rate_gbps=200.0, sm_lid=4, link_layer="InfiniBand")
ROCE = Port("ibx_1", 1, state="active", phys_state="LinkUp", rate_gbps=100.0, sm_lid=0, link_layer="Ethernet")
UNSET = Port("ibx_2", 1, state="init", phys_state="LinkUp", rate_gbps=200.0, sm_lid=0, link_layer="InfiniBand")
LOOSE = Port("ibx_3", 1, state="down", phys_state="Polling", rate_gbps=10.0, link_layer="InfiniBand")


@pytest.mark.parametrize(
    ("ports", "unreadable", "said"),
    [
        ([UP], [], None),
        ([LOOSE, UP], [], None),
        ([], [], "no InfiniBand"),
        ([ROCE], [], "no InfiniBand"),
        ([UNSET], [], "no subnet manager"),
        ([LOOSE], [], "nothing answers"),
        ([], ["ibx_9"], "not known"),
        ([UP], ["ibx_9"], None),
    ],
)
def test_what_a_node_cannot_do(ports: list[Port], unreadable: list[str], said: Optional[str]) -> None:
    told = adapters.cannot(ports, unreadable)
    assert (told is None) if said is None else (told is not None and said in told)


def test_only_a_label_names_a_fabric() -> None:
    one, other = adapters.adapters([UP, UNSET], {"ibx_0": "east"})
    assert one["fabric"] == "east" and one["problem"] is None
    assert other["fabric"] is None and "subnet manager" in other["problem"]


def _folder(root: Path, state: str) -> Path:
    port = root / "ibx_0" / "ports" / "1"
    (port / "gids").mkdir(parents=True)
    for name, content in {
        "state": state,
        "phys_state": "5: LinkUp",
        "rate": "200 Gb/sec (4X HDR)",
        "link_layer": "InfiniBand",
        "gids/0": "fe80:0000:0000:0000:0000:1111:2222:3333",
    }.items():
        (port / name).write_text(content + "\n")
    return root


@pytest.mark.parametrize(("state", "problem"), [("4: ACTIVE", False), ("2: INIT", True)])
def test_a_folder_like_the_kernels(tmp_path: Path, state: str, problem: bool) -> None:
    report: dict[str, Any] = {"hcas": None, "cannot": []}
    add_infiniband(report, _folder(tmp_path, state))
    (hca,) = report["hcas"]
    assert (hca["name"], hca["port"], hca["rate_gbps"]) == ("ibx_0", 1, 200.0)
    assert hca["gid_prefix"] == "fe80:0000:0000:0000" and hca["numa_node"] is None
    assert bool(report["cannot"]) is problem and (hca["problem"] is not None) is problem
    (line,) = adapters.lines(report["hcas"])
    assert "200 Gb/s" in line and "NUMA -" in line


def test_no_folder_is_no_adapter(tmp_path: Path) -> None:
    report: dict[str, Any] = {"hcas": None, "cannot": []}
    add_infiniband(report, tmp_path / "none")
    assert report == {"hcas": [], "cannot": [adapters.NO_INFINIBAND]}
