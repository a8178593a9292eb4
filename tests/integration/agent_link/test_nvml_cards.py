"""Cards through the real binding and a library of that name that reads one state file; faults in it at will."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from runtime.agent.hardware.detector import CollectorError
from runtime.agent.hardware.inventory import Inventory
from runtime.agent.hardware.nvidia import Nvidia
from runtime.agent.hardware.tools import ToolError, ToolRunner
from tests.integration.agent_link.stub_server import wait_until
from tests.lab.cards import build
from tests.lab.cards.state import default_state

NODE = "test-node"


class CardFile:
    """The state file that library and tool read."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = path
        self.state = default_state(NODE, count)
        self.save()

    def save(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.state))
        new.replace(self.path)

    def fault(self, call: str, index: int | None = None, **fault) -> None:
        place = self.state if index is None else self.state["cards"][index]
        place["faults"][call] = {"error": 0, "delay_s": 0, "hang": False, **fault}
        self.save()

    def heal(self) -> None:
        self.state["faults"] = {}
        for card in self.state["cards"]:
            card["faults"] = {}
        self.save()

    def uuid(self, index: int) -> str:
        return self.state["cards"][index]["uuid"]


@pytest.fixture
def cards(tmp_path, monkeypatch) -> CardFile:
    file = CardFile(tmp_path / "cards.json", 2)
    monkeypatch.setenv("HF_LAB_CARDS", str(file.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build.library().parent))
    return file


@pytest.fixture
def runner() -> ToolRunner:
    return ToolRunner(deadline_s=2.0)


@pytest.fixture
def inventory(cards, runner, tmp_path):
    made = Inventory([Nvidia(runner, sysfs=tmp_path / "pci")], runner, node_id=NODE, state_dir=tmp_path)
    yield made
    made.stop()


def test_cards_with_everything_that_was_read(inventory: Inventory, cards: CardFile) -> None:
    inventory.round()
    snapshot = inventory.snapshot()
    assert snapshot.collector_error is None and snapshot.source == "nvml"
    assert [gpu.uuid for gpu in snapshot.gpus or []] == [cards.uuid(0), cards.uuid(1)]
    first = (snapshot.gpus or [])[0]
    assert (first.vendor, first.model, first.gpu_class) == (
        "nvidia",
        "NVIDIA H100 80GB HBM3",
        "nvidia-h100-80gb-hbm3-80g",
    )
    assert (first.memory_total_mib, first.pci_bus_id, first.compute_capability) == (81559, "00000000:17:00.0", "9.0")
    assert first.driver_version == "550.127.08"
    stats = snapshot.stats[0]
    assert (stats.temperature_c, stats.utilization_pct, stats.memory_used_mib, stats.power_w) == (31, 0, 4, 70.5)
    assert [(c.uuid, c.mig_capable) for c in snapshot.capabilities] == [(cards.uuid(0), False), (cards.uuid(1), False)]
    assert snapshot.topology is not None
    assert snapshot.topology.nvlink_domains == [sorted([cards.uuid(0), cards.uuid(1)])]
    (detection,) = snapshot.detection
    assert (detection.vendor, detection.found, detection.loss_detection, detection.evidence) == (
        "nvidia",
        True,
        "full",
        "fixture",
    )


@pytest.mark.parametrize("code", [15, 16, 999])
def test_a_lost_card_is_the_only_one_blamed_and_comes_back(inventory: Inventory, cards: CardFile, code: int) -> None:
    inventory.round()
    cards.fault("handle", 1, error=code)
    inventory.round()
    snapshot = inventory.snapshot()
    (failure,) = snapshot.failures
    assert failure.uuid == cards.uuid(1) and f"NVML code {code}" in failure.reason
    assert snapshot.collector_error is None
    assert sorted(gpu.uuid for gpu in snapshot.gpus or []) == sorted([cards.uuid(0), cards.uuid(1)])
    assert [stats.uuid for stats in snapshot.stats] == [cards.uuid(0)]
    cards.heal()
    inventory.round()
    assert inventory.snapshot().failures == [] and len(inventory.snapshot().stats) == 2


def test_a_card_lost_before_the_agent_started_is_named_from_the_last_inventory(
    inventory: Inventory, cards: CardFile, runner: ToolRunner, tmp_path
) -> None:
    inventory.round()
    inventory.stop()
    cards.fault("handle", 0, error=15)
    again = Inventory([Nvidia(runner, sysfs=tmp_path / "pci")], runner, node_id=NODE, state_dir=tmp_path)
    assert len(again.snapshot().gpus or []) == 2
    again.round()
    assert [failure.uuid for failure in again.snapshot().failures] == [cards.uuid(0)]
    again.stop()


def test_a_value_that_the_card_does_not_offer_is_none(inventory: Inventory, cards: CardFile) -> None:
    cards.fault("nvmlDeviceGetTemperature", 0, error=3)
    inventory.round()
    assert inventory.snapshot().stats[0].temperature_c is None
    assert inventory.snapshot().stats[0].power_w == 70.5
    assert inventory.snapshot().failures == []


@pytest.mark.parametrize("fault", ["init", "nvmlDeviceGetCount"])
def test_a_library_that_fails_as_a_whole_shrinks_nothing(inventory: Inventory, cards: CardFile, fault: str) -> None:
    inventory.round()
    inventory._detectors[0].close()
    cards.fault(fault, error=999)
    inventory.round()
    snapshot = inventory.snapshot()
    assert "code 999" in (snapshot.collector_error or "")
    assert len(snapshot.gpus or []) == 2 and snapshot.stats == [] and snapshot.failures == []


def test_an_empty_list_where_cards_were_known_is_an_error(inventory: Inventory, cards: CardFile) -> None:
    inventory.round()
    inventory._detectors[0].close()
    cards.state["cards"] = []
    cards.save()
    inventory.round()
    assert "lists no card; 2 were known" in (inventory.snapshot().collector_error or "")
    assert len(inventory.snapshot().gpus or []) == 2


def test_virtual_cards_never_stand_in_for_a_vendor_that_fails(inventory: Inventory, cards: CardFile) -> None:
    cards.fault("init", error=9)
    inventory.round()
    snapshot = inventory.snapshot()
    assert snapshot.gpus is None and "code 9" in (snapshot.collector_error or "")
    assert not snapshot.detection[0].found


def test_virtual_cards_where_nothing_is(tmp_path, runner: ToolRunner, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    detector = Nvidia(runner, sysfs=tmp_path, nvml_present=lambda: False)
    inventory = Inventory([detector], runner, node_id=NODE, state_dir=None, virtual=2)
    inventory.round()
    assert [(gpu.vendor, gpu.uuid) for gpu in inventory.snapshot().gpus or []] == [
        ("virtual", f"virtual-{NODE}-0"),
        ("virtual", f"virtual-{NODE}-1"),
    ]
    assert inventory.snapshot().source == "virtual"


def test_a_hung_driver_is_said_within_the_deadline_and_the_child_replaced(
    inventory: Inventory, cards: CardFile, runner: ToolRunner
) -> None:
    """What happened: the loop that waited for a wedged driver stopped publishing altogether."""
    inventory.round()
    cards.fault("nvmlDeviceGetMemoryInfo", 0, hang=True)
    began = time.monotonic()
    inventory.round()
    assert time.monotonic() - began < 30
    assert inventory.snapshot().collector_error == "NVML did not answer in 2 s"
    assert len(inventory.snapshot().gpus or []) == 2 and runner.stuck() == []
    cards.heal()
    inventory.round()
    assert inventory.snapshot().collector_error is None


def test_nobody_waits_while_the_driver_hangs(inventory: Inventory, cards: CardFile) -> None:
    inventory.round()
    before = inventory.snapshot()
    cards.fault("*", hang=True)
    thread = threading.Thread(target=inventory.round)
    thread.start()
    assert inventory.snapshot() is before and thread.is_alive()
    thread.join(40)


def test_the_child_is_kept_between_rounds_and_ended_at_the_stop(inventory: Inventory) -> None:
    inventory.round()
    child = inventory._detectors[0]._child._child
    pid = child.pid
    inventory.round()
    assert inventory._detectors[0]._child._child is child
    inventory.stop()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 40)


def test_a_child_that_a_kill_does_not_end_is_left_behind_and_never_joined_by_another(
    inventory: Inventory, cards: CardFile, runner: ToolRunner, monkeypatch
) -> None:
    inventory.round()
    # What the kernel does to a process in state D: the kill has no effect.
    monkeypatch.setattr("runtime.agent.hardware.nvml.end_child", lambda child: False)
    cards.fault("*", hang=True)
    inventory.round()
    assert runner.stuck() == ["NVML"]
    stuck = next(iter(runner._stuck.values()))
    inventory.round()
    assert "stuck in the kernel" in (inventory.snapshot().collector_error or "")
    assert inventory.stuck_tools() == ["NVML"]
    stuck.kill()
    cards.heal()
    wait_until(lambda: runner.stuck() == [], 40)
    inventory.round()
    assert inventory.snapshot().collector_error is None


# nvidia-smi


@pytest.fixture
def smi(tmp_path) -> Path:
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir()
    path.write_bytes(build.tool())
    path.chmod(0o755)
    return path


def test_without_the_library_nvidia_smi_says_the_same(cards: CardFile, runner: ToolRunner, smi: Path, tmp_path) -> None:
    by_nvml = Nvidia(runner, sysfs=tmp_path)
    by_smi = Nvidia(runner, {"nvidia-smi": str(smi)}, use_nvml=False, sysfs=tmp_path)
    left, right = by_nvml.collect([]), by_smi.collect([])
    by_nvml.close()
    assert right.source == "nvidia-smi"
    assert right.gpus == left.gpus
    assert right.stats == left.stats


def test_a_card_lost_for_nvidia_smi(cards: CardFile, runner: ToolRunner, smi: Path, tmp_path) -> None:
    detector = Nvidia(runner, {"nvidia-smi": str(smi)}, use_nvml=False, sysfs=tmp_path)
    known = detector.collect([]).gpus
    cards.fault("handle", 1, error=15)
    lost = detector.collect(known)
    assert [failure.uuid for failure in lost.failures] == [cards.uuid(1)]
    assert sorted(gpu.uuid for gpu in lost.gpus) == sorted(gpu.uuid for gpu in known)


@pytest.mark.parametrize("script", ["sleep 60", "sleep 60 & wait", "trap '' TERM; sleep 60"])
def test_a_tool_that_hangs_is_killed_with_its_children(runner: ToolRunner, tmp_path, script: str) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{script}\n")
    tool.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(CollectorError, match=r"nvidia-smi did not answer in 2 s"):
        Nvidia(runner, {"nvidia-smi": str(tool)}, use_nvml=False, sysfs=tmp_path).collect([])
    assert time.monotonic() - began < 30
    group = int((tmp_path / "pid").read_text())
    wait_until(lambda: not _group_lives(group), 40)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_tool_runs_once_at_a_time(runner: ToolRunner) -> None:
    started = threading.Thread(target=lambda: runner.run("slow", ["sleep", "0.5"]))
    started.start()
    wait_until(lambda: "slow" in runner._busy, 40)
    with pytest.raises(ToolError, match="still running"):
        runner.run("slow", ["true"])
    started.join(40)
    assert runner.run("slow", ["true"]).status == 0


def test_a_tool_does_not_see_the_agent_s_secrets(runner: ToolRunner, monkeypatch) -> None:
    monkeypatch.setenv("HETEROFLEET_API_KEY", "secret-secret")
    assert "secret-secret" not in runner.run("env", ["env"]).stdout
