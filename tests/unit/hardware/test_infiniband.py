"""InfiniBand ports from a folder like the kernel's: what carries data, what does not and why."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware.infiniband import adapters
from runtime.agent.hardware.infiniband.look import Looked, look
from runtime.agent.hardware.infiniband.ports import Port
from runtime.agent.hardware.infiniband.watch import AdapterWatch
from runtime.agent.hardware.report import add_infiniband
from runtime.agent.hardware.tools import ToolError, ToolRunner
from runtime.protocol.hardware import Hca

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
    told = adapters.cannot(Looked(ports, unreadable))
    assert (told is None) if said is None else (told is not None and said in told)


def test_only_a_label_names_a_fabric() -> None:
    fabrics = adapters.by_adapter([{"name": "east", "hcas": ["ibx_0", "ibx_7"]}, {"name": "west", "hcas": ["ibx_7"]}])
    assert fabrics == {"ibx_0": "east", "ibx_7": "east"}
    one, other, silent = adapters.adapters(Looked([UP, UNSET], ["ibx_7"]), fabrics)
    assert one["fabric"] == "east" and one["problem"] is None
    assert other["fabric"] is None and "subnet manager" in other["problem"]
    assert silent["fabric"] == "east" and silent["port"] is silent["state"] is None and silent["problem"]
    assert adapters.hcas_of(Looked([UP]), {}) == [
        Hca("ibx_0", 1, "active", 200.0, "InfiniBand", gid_prefix=None, numa_node=None, fabric=None)
    ]


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
    add_infiniband(report, {"ibx_0": "east"}, _folder(tmp_path, state))
    (hca,) = report["hcas"]
    assert (hca["name"], hca["port"], hca["rate_gbps"]) == ("ibx_0", 1, 200.0)
    assert hca["gid_prefix"] == "fe80:0000:0000:0000" and hca["numa_node"] is None
    assert bool(report["cannot"]) is problem and (hca["problem"] is not None) is problem
    (line,) = adapters.lines(report["hcas"])
    assert "200 Gb/s" in line and "NUMA -" in line and "fabric east" in line


def test_no_folder_is_no_adapter(tmp_path: Path) -> None:
    report: dict[str, Any] = {"hcas": None, "cannot": []}
    add_infiniband(report, {}, tmp_path / "none")
    assert report == {"hcas": [], "cannot": [adapters.NO_INFINIBAND]}


def test_a_file_that_cannot_be_read_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """Virtual functions and other drivers lack files; a device node may be stale."""
    root = _folder(tmp_path, "4: ACTIVE")
    (root / "ibx_0" / "ports" / "1" / "rate").unlink()
    (root / "ibx_0" / "ports" / "1" / "gids" / "0").unlink()
    (root / "ibx_9").symlink_to(root / "gone")
    looked = look(ToolRunner(), root)
    assert [(port.hca, port.state, port.rate_gbps, port.gid_prefix) for port in looked.ports] == [
        ("ibx_0", "active", None, None)
    ]
    assert looked.unreadable == ["ibx_9"]


def test_a_file_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    """Nothing is known then, which is not "none"; and it is told when it answers again."""
    root = _folder(tmp_path, "4: ACTIVE")
    rate = root / "ibx_0" / "ports" / "1" / "rate"
    rate.unlink()
    os.mkfifo(rate)
    runner = ToolRunner()
    with pytest.raises(ToolError, match="did not answer in 1 s"):
        look(runner, root, deadline_s=1)
    watch = AdapterWatch(runner, {"ibx_0": "east"}, root=root, deadline_s=1, on_first=lambda: told.append(1))
    told: list[int] = []
    assert watch.snapshot() is None
    watch.refresh()
    assert watch.snapshot() is None and runner.stuck() == []
    rate.unlink()
    rate.write_text("100 Gb/sec (4X EDR)\n")
    watch.refresh()
    (hca,) = watch.snapshot() or []
    assert (hca.rate_gbps, hca.fabric, told) == (100.0, "east", [1])
    shutil.rmtree(root / "ibx_0")
    watch.refresh()
    assert watch.snapshot() == []


def test_an_answer_that_is_none_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _folder(tmp_path, "4: ACTIVE")
    monkeypatch.setattr("runtime.agent.hardware.infiniband.look.CHILD", "runtime.agent.hardware.infiniband.ports")
    with pytest.raises(ToolError, match=r"ended with 1: AttributeError.*main"):
        look(ToolRunner(), root)
