"""What NVIDIA cards are used for and how they are, through the real binding: slices, processes, MPS, worn memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.hardware.inventory import GpuSnapshot, Inventory
from runtime.agent.hardware.mps import ASK_EVERY, CONTROL
from runtime.agent.hardware.nvidia import Nvidia
from runtime.agent.hardware.report import report_of
from runtime.agent.hardware.tools import ToolRunner
from tests.lab.cards import build
from tests.lab.cards.state import default_state

NODE = "test-node"


class Machine:
    """Two cards and their detector; ``cards`` may be changed between two looks."""

    def __init__(self, folder: Path, tools: dict[str, str]) -> None:
        self.path = folder / "cards.json"
        self.state = default_state(NODE, 2)
        self.cards: list[dict[str, Any]] = self.state["cards"]
        self.lines: list[str] = []
        self.runner = ToolRunner(deadline_s=10.0)
        detector = Nvidia(self.runner, tools, sysfs=folder / "pci", kernel_lines=self._new_lines)
        self.inventory = Inventory([detector], self.runner, node_id=NODE, state_dir=None)

    def _new_lines(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def look(self) -> GpuSnapshot:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.state))
        new.replace(self.path)
        self.inventory.round()
        return self.inventory.snapshot()


@pytest.fixture
def daemon(tmp_path: Path) -> Path:
    """MPS's control program: it answers while the file ``up`` is there."""
    tool = tmp_path / CONTROL
    tool.write_text(
        f"#!/bin/sh\nread word\n[ -e {tmp_path}/up ] && [ $word = get_default_active_thread_percentage ] && "
        "{ echo 100.0; exit 0; }\necho Cannot find MPS control daemon process\nexit 1\n"
    )
    tool.chmod(0o755)
    return tool


@pytest.fixture
def machine(tmp_path: Path, daemon: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("HF_LAB_CARDS", str(tmp_path / "cards.json"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build.library().parent))
    made = Machine(tmp_path, {CONTROL: str(daemon)})
    yield made
    made.inventory.stop()


def instance(number: int, uuid: Any) -> dict[str, Any]:
    profile = {"gi_id": number, "ci_id": 0, "profile": "1g.10gb", "profile_id": 19, "ci_profile_id": 0, "size": 1}
    return {**profile, "start": number, "sms": 16, "memory_total_mib": 9984, "memory_used_mib": 12, "uuid": uuid}


def test_slices_are_units_of_their_own_and_hold_their_processes(machine: Machine) -> None:
    first, second = machine.cards
    first.update(mig_mode="Enabled", mig_pending="Enabled", memory_used_mib=60_000)
    first["mig_instances"] = [instance(7, "MIG-7"), instance(8, "MIG-8")]
    mine = {"pid": os.getpid(), "name": "/usr/bin/trainer", "type": "C", "memory_mib": 300, "gi_id": 8, "ci_id": 0}
    first["processes"] = [mine]
    second["processes"] = [{"pid": os.getppid(), "name": "Xorg", "type": "G", "memory_mib": None}]
    seen = machine.look()
    assert [(gpu.uuid, gpu.parent_uuid, gpu.gi_id) for gpu in seen.gpus or []] == [
        (first["uuid"], None, None),
        ("MIG-7", first["uuid"], 7),
        ("MIG-8", first["uuid"], 8),
        (second["uuid"], None, None),
    ]
    held = [(one.uuid, one.name, one.memory_mib, one.ours) for one in seen.holders or []]
    assert held == [("MIG-8", "trainer", 300, False), (second["uuid"], "Xorg", None, None)]
    assert [(one.uuid, one.mig_capable) for one in seen.capabilities] == [
        (first["uuid"], True),
        (second["uuid"], False),
    ]


@pytest.mark.case("FC-046")
def test_a_mode_that_waits_for_a_reset_is_told_and_not_claimed(machine: Machine) -> None:
    machine.cards[0]["mig_pending"] = "Enabled"
    machine.cards[1].update(mig_mode=None, mig_pending=None)  # N/A
    seen = machine.look()
    assert [one.mig_capable for one in seen.capabilities] == [False, False] and seen.failures == []
    assert [(note.uuid, note.code) for note in seen.notes] == [(machine.cards[0]["uuid"], "mig_pending")]
    health = report_of(seen)["gpus"][0]["health"]
    assert health["ok"] is True and health["problems"][0].startswith("reset needed")


def test_memory_that_outlived_its_process_holds_the_card(machine: Machine) -> None:
    machine.cards[1]["memory_used_mib"] = 70_000
    looks = [machine.look().holders for _ in range(3)]
    assert looks[0] == looks[1] == []
    assert [(one.uuid, one.pid, one.memory_mib, one.ours) for one in looks[2] or []] == [
        (machine.cards[1]["uuid"], None, 70_000, False)
    ]


def test_mps_is_there_while_its_daemon_answers(machine: Machine, tmp_path: Path) -> None:
    machine.cards[1].update(mig_mode="Enabled", mig_pending="Enabled")
    assert [one.mps_capable for one in machine.look().capabilities] == [False, False]
    (tmp_path / "up").touch()
    looks = [[one.mps_capable for one in machine.look().capabilities] for _ in range(ASK_EVERY)]
    assert looks[-1] == [True, False], "a card that is cut into slices is shared by them"
    (tmp_path / "up").unlink()
    looks = [[one.mps_capable for one in machine.look().capabilities] for _ in range(ASK_EVERY)]
    assert looks[-1] == [False, False]


def test_worn_memory_and_the_kernel_s_words_are_told_beside_the_card(machine: Machine) -> None:
    """With the collection after: an operator does not wait 5 minutes for it."""
    first, second = machine.cards
    assert machine.look().notes == []
    first["remapped_rows"].update(uncorrectable=4, pending=True)
    second["ecc_uncorrected"] = 2
    machine.lines = [f"NVRM: Xid (PCI:{second['pci_bus_id'][4:-2]}): 63, pid=1, Row Remapper: new row"]
    seen = machine.look()
    assert [(note.uuid, note.code) for note in seen.notes] == [
        (first["uuid"], "remap_pending"),
        (second["uuid"], "ecc_uncorrected"),
        (second["uuid"], "xid"),
    ]
    machine.lines = [f"NVRM: Xid (PCI:{second['pci_bus_id'][4:-2]}): 79, GPU has fallen off the bus."]
    seen = machine.look()
    assert [failure.uuid for failure in seen.failures] == [second["uuid"]]
    assert [gpu.uuid for gpu in seen.gpus or []] == [first["uuid"], second["uuid"]]


def test_a_driver_that_was_upgraded_under_the_library_is_named(machine: Machine) -> None:
    machine.state["faults"] = {"init": {"error": 18}}
    seen = machine.look()
    assert seen.gpus is None and "(code 18)" in (seen.collector_error or "")
    assert "reboot, or reload the module nvidia" in (seen.collector_error or "")


def test_a_card_in_the_machine_s_own_memory(machine: Machine) -> None:
    machine.cards[0].update(name="NVIDIA GB10", memory_total_mib=None, memory_used_mib=None)
    seen = machine.look()
    card = report_of(seen)["gpus"][0]
    assert (card["memory_total_mib"], card["memory_used_mib"], card["class"]) == (None, None, "nvidia-gb10")
    assert [note.code for note in seen.notes] == ["unified_memory"] and card["health"]["ok"] is True
