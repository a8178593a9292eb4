"""Whole machines through ``inventory``: cut cards, a network that nobody manages, cards of two vendors. The texts are
invented, in the form of the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.hardware.detectors import all_detectors
from runtime.agent.hardware.infiniband.adapters import NO_INFINIBAND
from runtime.agent.hardware.inventory import GpuSnapshot, Inventory
from runtime.agent.hardware.nvidia_by_smi import ADDED, QUERY
from runtime.agent.hardware.report import report_of
from runtime.agent.hardware.tools import ToolRunner
from tests.fuzz.texts import FOLDER
from tests.integration.inventory.fake_tools import answering, inventory

CUT, WHOLE = "GPU-0a1b2c3d-1111-4222-8333-444455556666", "GPU-0a1b2c3d-7777-4888-8999-aaaabbbbcccc"
SLICES = ["MIG-5d3e1f00-0001-5aaa-8bbb-000000000001", "MIG-5d3e1f00-0002-5aaa-8bbb-000000000002"]
FULL_CLASS = "nvidia-a100-sxm4-80gb-80g"
PART_CLASSES = ["nvidia-a100-sxm4-80gb-mig-3g-40gb-40g", "nvidia-a100-sxm4-80gb-mig-1g-10gb-10g"]

VALUES = {
    "index": ("0", "1"),
    "uuid": (CUT, WHOLE),
    "pci.bus_id": ("00000000:17:00.0", "00000000:65:00.0"),
    "name": ("NVIDIA A100-SXM4-80GB",) * 2,
    "memory.total": ("81920 MiB",) * 2,
    "memory.used": ("1093 MiB", "5 MiB"),
    "utilization.gpu": ("[N/A]", "3 %"),
    "temperature.gpu": ("38", "34"),
    "power.draw": ("88.12 W", "61.50 W"),
    "driver_version": ("570.11",) * 2,
    "mig.mode.current": ("Enabled", "Disabled"),
    "mig.mode.pending": ("Enabled", "Disabled"),
    "compute_cap": ("8.0",) * 2,
    "ecc.errors.uncorrected.volatile.total": ("0",) * 2,
}
LIST = f"""GPU 0: NVIDIA A100-SXM4-80GB (UUID: {CUT})
  MIG 3g.40gb     Device  0: (UUID: {SLICES[0]})
  MIG 1g.10gb     Device  1: (UUID: {SLICES[1]})
GPU 1: NVIDIA A100-SXM4-80GB (UUID: {WHOLE})
"""
TABLE = """Mon Mar  2 07:08:09 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.11                 Driver Version: 570.11         CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:17:00.0 Off |                   On |
| N/A   38C    P0             88W /  400W |    1093MiB /  81920MiB |     N/A      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-SXM4-80GB          On  |   00000000:65:00.0 Off |                    0 |
| N/A   34C    P0             61W /  400W |       5MiB /  81920MiB |      3%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|                  |                                  |        ECC|                       |
|==================+==================================+===========+=======================|
|  0    1   0   0  |            1071MiB / 40192MiB    | 42      0 |  3   0    2    0    0 |
|                  |               2MiB / 65535MiB    |           |                       |
+------------------+----------------------------------+-----------+-----------------------+
|  0    9   0   1  |              22MiB /  9856MiB    | 14      0 |  1   0    0    0    0 |
|                  |               0MiB / 16383MiB    |           |                       |
+------------------+----------------------------------+-----------+-----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0    1    0            41414      C   python3                                1020MiB |
+-----------------------------------------------------------------------------------------+
"""
SLICE = """
				<mig_device>
					<index>{index}</index>
					<gpu_instance_id>{gi}</gpu_instance_id>
					<compute_instance_id>0</compute_instance_id>
					<fb_memory_usage><total>{total} MiB</total><used>{used} MiB</used></fb_memory_usage>
				</mig_device>"""
XML = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<driver_version>570.11</driver_version>
	<attached_gpus>2</attached_gpus>
	<gpu id="00000000:17:00.0">
		<product_name>NVIDIA A100-SXM4-80GB</product_name>
		<uuid>{CUT}</uuid>
		<mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
		<mig_devices>{SLICE.format(index=0, gi=1, total=40192, used=1071)}\
{SLICE.format(index=1, gi=9, total=9856, used=22)}
		</mig_devices>
	</gpu>
	<gpu id="00000000:65:00.0">
		<product_name>NVIDIA A100-SXM4-80GB</product_name>
		<uuid>{WHOLE}</uuid>
		<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
		<mig_devices>None</mig_devices>
	</gpu>
</nvidia_smi_log>
"""


def answer(query: str) -> str:
    """What the driver prints for the fields of a query; one that it does not know fails the whole of it."""
    fields = query.partition("=")[2].split(",")
    unknown = [field for field in fields if field not in VALUES]
    if unknown:
        return f'Field "{unknown[0]}" is not a valid field to query.\n'
    units = {"memory.total": " [MiB]", "memory.used": " [MiB]", "utilization.gpu": " [%]", "power.draw": " [W]"}
    rows = [[field + units.get(field, "") for field in fields], *([VALUES[f][i] for f in fields] for i in (0, 1))]
    return "".join(", ".join(row) + "\n" for row in rows)


def cut_machine(folder: Path, *, old: bool) -> Path:
    """``nvidia-smi`` of a machine with two cards, one of them cut in two; ``old`` has neither queries nor a list."""
    asked: dict[Sequence[str], str] = {(): TABLE}
    if not old:
        asked.update({query: answer(query[0]) for query in (QUERY, *ADDED)})
        asked.update({("-L",): LIST, ("-q", "-x"): XML})
    return answering(folder / "nvidia-smi", asked)


def shown(table: str, uuid: str) -> str:
    """The line of a card."""
    (line,) = (line for line in table.splitlines() if line.endswith(f" {uuid}"))
    return line


def test_a_cut_card_and_its_slices(tmp_path: Path) -> None:
    words = ("--no-nvml", "--nvidia-smi", str(cut_machine(tmp_path, old=False)))
    found, table = inventory(*words)
    names = ("uuid", "parent_uuid", "profile", "class", "memory_total_mib", "memory_used_mib", "utilization_pct")
    assert [tuple(gpu[name] for name in names) for gpu in found["gpus"]] == [
        (CUT, None, None, FULL_CLASS, 81920, 1093, None),
        (SLICES[0], CUT, "3g.40gb", PART_CLASSES[0], 40192, 1071, None),
        (SLICES[1], CUT, "1g.10gb", PART_CLASSES[1], 9856, 22, None),
        (WHOLE, None, None, FULL_CLASS, 81920, 5, 3),
    ]
    # A card that is cut is given out by its slices alone.
    assert found["classes"] == [{"class": name, "count": 1} for name in sorted([FULL_CLASS, *PART_CLASSES])]
    assert {gpu["compute_capability"] for gpu in found["gpus"]} == {"8.0"}
    assert all(gpu["health"] == {"ok": True, "problems": []} for gpu in found["gpus"])
    # What it measures as a whole is nobody's slice's.
    assert {(gpu["temperature_c"], gpu["power_w"]) for gpu in found["gpus"] if gpu["parent_uuid"]} == {(None, None)}
    assert "40192 MiB" in shown(table, SLICES[0]) and PART_CLASSES[0] in shown(table, SLICES[0])
    assert "no accelerator" not in table


def test_a_cut_card_by_an_old_tool_s_table_alone(tmp_path: Path) -> None:
    found, _ = inventory("--no-nvml", "--nvidia-smi", str(cut_machine(tmp_path, old=True)))
    parent, *slices, whole = found["gpus"]
    assert [gpu["parent_uuid"] for gpu in slices] == [parent["uuid"]] * 2 and whole["parent_uuid"] is None
    assert [(gpu["memory_total_mib"], gpu["profile"]) for gpu in slices] == [(40192, None), (9856, None)]
    assert [(one["uuid"], one["pid"], one["memory_mib"]) for one in found["gpu_holders"]] == [
        (slices[0]["uuid"], 41414, 1020)
    ]


def port(root: Path, hca: str, **files: str) -> None:
    """A port of an adapter as the kernel shows it."""
    folder = root / hca / "ports" / "1"
    (folder / "gids").mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    (folder / "gids" / "0").write_text("fe80:0000:0000:0000:506b:4b03:00aa:bb01\n")


UP = {"link_layer": "InfiniBand", "phys_state": "5: LinkUp", "rate": "200 Gb/sec (4X HDR)"}
UNMANAGED = {**UP, "state": "2: INIT", "lid": "0xffff", "sm_lid": "0x0"}
ACTIVE = {**UP, "state": "4: ACTIVE", "lid": "0x11", "sm_lid": "0x1"}


def test_a_port_without_a_subnet_manager(tmp_path: Path) -> None:
    root = tmp_path / "infiniband"
    port(root, "mlx5_2", **UNMANAGED)
    words = ("--no-gpu", "--ib-root", str(root))
    found, table = inventory(*words)
    (hca,) = found["hcas"]
    assert (hca["name"], hca["port"], hca["state"], hca["link_layer"]) == ("mlx5_2", 1, "init", "InfiniBand")
    assert (hca["gid_prefix"], hca["fabric"]) == ("fe80:0000:0000:0000", None), "a prefix names no fabric"
    assert "subnet manager" in hca["problem"] and "broken" not in hca["problem"]
    (cannot,) = [one for one in found["cannot"] if "InfiniBand" in one]
    assert "subnet manager" in cannot and "cannot take part in multi-node replicas" in cannot and "mlx5_2" in cannot
    (line,) = [line for line in table.splitlines() if line.startswith("mlx5_2 port 1")]
    assert "init" in line and "subnet manager" in line and "prefix fe80" in line and cannot in table


def test_one_port_that_is_well_is_enough(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_2", **UNMANAGED)
    port(tmp_path, "mlx5_10", **ACTIVE)
    found, _ = inventory("--no-gpu", "--ib-root", str(tmp_path))
    assert [(one["name"], one["state"]) for one in found["hcas"]] == [("mlx5_2", "init"), ("mlx5_10", "active")]
    assert [one["problem"] is None for one in found["hcas"]] == [False, True]
    assert not any("InfiniBand" in one for one in found["cannot"])


def test_no_port_at_all(tmp_path: Path) -> None:
    found, table = inventory("--no-gpu", "--ib-root", str(tmp_path))
    assert found["hcas"] == [] and NO_INFINIBAND in found["cannot"] and NO_INFINIBAND in table


def mixed(folder: Path) -> dict[str, str]:
    """Tools of two vendors, both with cards."""
    ascend = (FOLDER / "npu-smi" / "table_hbm_two_chips.txt").read_text("utf-8")
    return {
        "npu-smi": str(answering(folder / "npu-smi", {("info",): ascend})),
        "nvidia-smi": str(cut_machine(folder, old=False)),
    }


def test_of_two_vendors_the_first_in_order_has_the_node_and_both_are_told_of(tmp_path: Path) -> None:
    tools = mixed(tmp_path)
    words = ["--no-nvml", *(word for name, path in tools.items() for word in ("--tool", f"{name}={path}"))]
    found, table = inventory(*words)
    assert found["source"] == "npu-smi" and {gpu["vendor"] for gpu in found["gpus"]} == {"ascend"}
    assert {one["vendor"]: one["why"] for one in found["detection"] if one["found"]} == {
        "ascend": "npu-smi answers with 3 cards",
        "nvidia": "nvidia-smi answers with 4 cards",
    }
    assert "nvidia: found, nvidia-smi answers with 4 cards" in table
    (cannot,) = [one for one in found["cannot"] if "nvidia" in one]
    assert "hardware.detect" in cannot and cannot in table


@pytest.mark.parametrize("mode", ["first", "all"])
def test_all_vendors_count_where_the_settings_say_so(mode: str, tmp_path: Path) -> None:
    found = report_of(look(mixed(tmp_path), mode))
    counts = {one["class"]: one["count"] for one in found["classes"]}
    assert counts.pop("ascend-ascend999-64g") == 3
    if mode == "first":
        assert (counts, found["source"]) == ({}, "npu-smi")
        return
    assert counts == {FULL_CLASS: 1, **dict.fromkeys(PART_CLASSES, 1)} and found["source"] == "mixed"
    assert [gpu["vendor"] for gpu in found["gpus"]] == ["ascend"] * 3 + ["nvidia"] * 4
    assert [one["uuid"] for one in found["gpu_collect_failures"]] == [
        gpu["uuid"] for gpu in found["gpus"] if not gpu["health"]["ok"]
    ], "a sick card of one vendor says nothing of the other's"


def test_one_vendor_s_failure_is_not_the_other_s(tmp_path: Path) -> None:
    tools = mixed(tmp_path)
    runner = ToolRunner()
    seen = Inventory(all_detectors(runner, tools), runner, node_id="node", state_dir=None, mode="all")
    seen.round()
    answering(Path(tools["npu-smi"]), {("info",): "dcmi module initialize failed. ret is -8005\n"})
    seen.round()
    found = report_of(seen.snapshot())
    assert "npu-smi has failed" in found["error"] and "nvidia" not in found["error"]
    measured: dict[str, Any] = {gpu["uuid"]: gpu["memory_used_mib"] for gpu in found["gpus"]}
    assert len(measured) == 7 and measured[WHOLE] == 5
    assert [gpu["memory_used_mib"] for gpu in found["gpus"] if gpu["vendor"] == "ascend"] == [None] * 3


def look(tools: dict[str, str], mode: str) -> GpuSnapshot:
    runner = ToolRunner()
    seen = Inventory(all_detectors(runner, tools), runner, node_id="node", state_dir=None, mode=mode)
    seen.round()
    return seen.snapshot()
