"""The card state file drives the library (through the real nvidia-ml-py), the tool and the runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, Node
from tests.lab.cards import build
from tests.lab.cards.state import default_state

pytest.importorskip("pynvml", reason="nvidia-ml-py is what these tests compare with")

# What a child with the lab's library prints; each value that cannot be read is its error code.
PROBE = """
import json, sys, pynvml as n
def ask(call, *words):
    try:
        value = call(*words)
    except n.NVMLError as error:
        return {"error": error.value}
    return value
try:
    n.nvmlInit()
except n.NVMLError as error:
    print(json.dumps({"init": error.value})); sys.exit()
cards = []
for index in range(n.nvmlDeviceGetCount()):
    handle = ask(n.nvmlDeviceGetHandleByIndex, index)
    if isinstance(handle, dict):
        cards.append(handle); continue
    instances = []
    while not isinstance(one := ask(n.nvmlDeviceGetMigDeviceHandleByIndex, handle, len(instances)), dict):
        instances.append({"uuid": n.nvmlDeviceGetUUID(one), "gi_id": n.nvmlDeviceGetGpuInstanceId(one),
            "memory_mib": n.nvmlDeviceGetMemoryInfo(one).total >> 20,
            "temperature_c": ask(n.nvmlDeviceGetTemperature, one, 0)})
    links = []
    while not isinstance(state := ask(n.nvmlDeviceGetNvLinkState, handle, len(links)), dict):
        links.append(n.nvmlDeviceGetNvLinkRemotePciInfo(handle, len(links)).busId if state else None)
    memory = ask(n.nvmlDeviceGetMemoryInfo, handle)
    memory = memory if isinstance(memory, dict) else {"total": memory.total >> 20, "used": memory.used >> 20}
    load = ask(n.nvmlDeviceGetUtilizationRates, handle)
    cards.append({"uuid": n.nvmlDeviceGetUUID(handle), "name": n.nvmlDeviceGetName(handle),
        "pci_bus_id": n.nvmlDeviceGetPciInfo(handle).busId, "memory": memory,
        "temperature_c": ask(n.nvmlDeviceGetTemperature, handle, 0),
        "temperature_v": ask(n.nvmlDeviceGetTemperatureV, handle, 0),
        "power_mw": ask(n.nvmlDeviceGetPowerUsage, handle),
        "utilization_pct": load if isinstance(load, dict) else load.gpu, "mig": ask(n.nvmlDeviceGetMigMode, handle),
        "capability": ask(n.nvmlDeviceGetCudaComputeCapability, handle), "numa": ask(n.nvmlDeviceGetNumaNodeId, handle),
        "processes": [[p.pid, p.usedGpuMemory >> 20] for p in n.nvmlDeviceGetComputeRunningProcesses(handle)],
        "instances": instances, "links": links})
cuda = n.nvmlSystemGetCudaDriverVersion()
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "cuda": cuda, "cards": cards}))
"""


class Machine:
    """A state file, the library and the tool on this machine, without a node: quick, and needs no root."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cards.json"
        self.tool = folder / "nvidia-smi"
        self.tool.write_bytes(build.tool())
        self.tool.chmod(0o755)
        self.state: dict[str, Any] = default_state("hf-node-9", 2)
        self.env = {**os.environ, "HF_LAB_CARDS": str(self.path), "LD_LIBRARY_PATH": str(build.library().parent)}
        self.write()

    def write(self) -> None:
        self.path.write_text(json.dumps(self.state))

    def read(self) -> None:
        self.state = json.loads(self.path.read_text())

    def nvml(self) -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-c", PROBE], env=self.env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer

    def smi(self, *words: str, code: int = 0) -> str:
        done = subprocess.run([self.tool, *words], env=self.env, capture_output=True, text=True, timeout=30)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    if os.geteuid() != 0:
        monkeypatch.setenv("HF_LAB_CACHE", str(tmp_path / "cache"))
    yield Machine(tmp_path)


def test_nvml_agrees_with_the_file(machine: Machine) -> None:
    machine.state["cards"][1].update(
        memory_used_mib=70_000, temperature_c=None, utilization_pct=97, power_w=612.25,
        processes=[{"pid": 4711, "name": "python3", "type": "C", "memory_mib": 69_000}],
    )  # fmt: skip
    machine.write()
    answer = machine.nvml()
    assert (answer["driver"], answer["cuda"]) == (machine.state["driver_version"], 12040)
    for wanted, found in zip(machine.state["cards"], answer["cards"]):
        assert {key: found[key] for key in ("uuid", "name", "pci_bus_id")} == {
            key: wanted[key] for key in ("uuid", "name", "pci_bus_id")
        }
        assert found["memory"] == {"total": wanted["memory_total_mib"], "used": wanted["memory_used_mib"]}
        assert found["power_mw"] == round(wanted["power_w"] * 1000)
        assert found["utilization_pct"] == wanted["utilization_pct"]
        assert found["links"] == wanted["nvlinks"]
        assert (found["mig"], found["capability"], found["numa"]) == ([0, 0], [9, 0], 0)
    assert answer["cards"][0]["temperature_c"] == answer["cards"][0]["temperature_v"] == 31
    assert answer["cards"][1]["temperature_c"] == {"error": 3}, "null is Not Supported, never 0"
    assert answer["cards"][1]["processes"] == [[4711, 69_000]]


def test_faults_hit_one_call_one_card_or_the_library(machine: Machine) -> None:
    first, second = machine.state["cards"]
    first["faults"] = {"nvmlDeviceGetPowerUsage": {"error": 999}}
    second["faults"] = {"handle": {"error": 15}}
    machine.write()
    answer = machine.nvml()["cards"]
    assert answer[0]["power_mw"] == {"error": 999}
    assert answer[0]["temperature_c"] == 31
    assert answer[1] == {"error": 15}
    for code in (9, 18, 999):
        machine.state["faults"] = {"init": {"error": code}}
        machine.write()
        assert machine.nvml() == {"init": code}
    machine.path.write_text("{ not json")
    assert machine.nvml() == {"init": 999}, "a broken file is not an empty machine"


def test_a_hanging_call_waits_until_the_file_lets_it_go(machine: Machine) -> None:
    machine.state["faults"] = {"nvmlDeviceGetCount": {"hang": True}}
    machine.write()
    child = subprocess.Popen([sys.executable, "-c", PROBE], env=machine.env, stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=1)
    machine.state["faults"] = {}
    machine.write()
    output, _ = child.communicate(timeout=60)
    assert len(json.loads(output)["cards"]) == 2


def test_a_card_that_left_shifts_the_indices(machine: Machine) -> None:
    machine.state["cards"][0]["present"] = False
    machine.write()
    assert [card["uuid"] for card in machine.nvml()["cards"]] == [machine.state["cards"][1]["uuid"]]
    assert machine.smi("--query-gpu=index,uuid", "--format=csv,noheader") == (
        f"0, {machine.state['cards'][1]['uuid']}\n"
    )


def test_mig_instances_made_by_the_tool_are_seen_by_nvml(machine: Machine) -> None:
    machine.smi("mig", "-cgi", "9", "-C", code=6)
    machine.smi("-i", "0", "-mig", "1")
    made = machine.smi("mig", "-i", "0", "-cgi", "9,1g.10gb,19", "-C")
    assert made.count("Successfully created GPU instance") == 3
    card = machine.nvml()["cards"][0]
    assert card["mig"] == [1, 1]
    assert [one["memory_mib"] for one in card["instances"]] == [40448, 9984, 9984]
    assert card["instances"][0]["temperature_c"] == card["utilization_pct"] == {"error": 3}
    assert all(one["uuid"] in machine.smi("-L") for one in card["instances"])
    assert "Insufficient Resources" in machine.smi("mig", "-cgi", "19,19,19", "-C", code=19)
    assert len(machine.nvml()["cards"][0]["instances"]) == 5, "what was made before the failure stays"
    assert "In use by another client" in machine.smi("mig", "-dgi", code=19)
    machine.smi("mig", "-dci")
    machine.smi("mig", "-dgi")
    assert "Not Found" in machine.smi("mig", "-dgi", code=6)


def test_the_tool_prints_tables_rows_and_failures(machine: Machine) -> None:
    table = machine.smi()
    assert {len(line) for line in table.splitlines() if line.startswith(("|", "+"))} == {91}
    assert "550.127.08" in table
    assert machine.smi("-i", "1", "--query-gpu=index,memory.total,power.draw", "--format=csv") == (
        "index, memory.total [MiB], power.draw [W]\n1, 81559 MiB, 71.50 W\n"
    )
    assert "not a valid field" in machine.smi("--query-gpu=index,moon", "--format=csv", code=2)
    assert "NV4" in machine.smi("topo", "-m")
    machine.state["cards"][1]["faults"] = {"handle": {"error": 15}}
    machine.write()
    lost = "Unable to determine the device handle for GPU1: 0000:27:00.0: GPU is lost.  Reboot the system"
    assert lost in machine.smi(code=15)
    rows = machine.smi("--query-gpu=index", "--format=csv,noheader", code=15)
    assert rows.startswith("0\n")
    assert lost in rows
    machine.state["smi"] = {"exit": 4, "stdout": "told so\n"}
    machine.write()
    assert machine.smi("-L", code=4) == "told so\n"


def test_a_node_has_the_cards_of_its_file(lab: Lab, node: Node) -> None:
    rows = node.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]).stdout.split()
    assert rows == [card["uuid"] for card in node.cards.read()["cards"]]
    assert len({uuid for one in lab.nodes[:3] for uuid in [c["uuid"] for c in one.cards.read()["cards"]]}) == 6
    script = "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); print(n.nvmlInit_v2())"
    assert node.run(["python3", "-c", script]).stdout.strip() == "0"
    node.cards.fault("init", error=18)
    assert node.run(["python3", "-c", script]).stdout.strip() == "18"


def test_the_runtime_writes_down_what_it_was_asked_and_refuses_unknown_cards(node: Node) -> None:
    uuid = node.cards.read()["cards"][0]["uuid"]
    run = ["run", "--rm", "--runtime=nvidia", "-e"]
    done = node.docker(*run, f"NVIDIA_VISIBLE_DEVICES={uuid}", "hf-lab/task:1", "env", "NVIDIA_VISIBLE_DEVICES")
    assert done.stdout.strip() == f"NVIDIA_VISIBLE_DEVICES={uuid}"
    assert node.cards.runtime_calls()[-1]["env"]["NVIDIA_VISIBLE_DEVICES"] == uuid
    refused = node.docker(*run, "NVIDIA_VISIBLE_DEVICES=GPU-none", "hf-lab/task:1", "exit", "0", check=False)
    assert refused.returncode == 125
    assert "unknown device" in refused.stderr
    node.docker("run", "--rm", "--gpus", "all", "hf-lab/task:1", "exit", "0")
    assert node.cards.runtime_calls()[-1]["how"] == "hook"


def test_the_file_can_be_edited_while_the_node_is_off(node: Node) -> None:
    began = time.monotonic()
    node.cards.set(0, memory_used_mib=1234)
    assert time.monotonic() - began < 30
    assert node.sh("nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits") == "1234"
