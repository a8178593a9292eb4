"""Cards of other vendors than NVIDIA, given to real containers and processes by the real agent."""

from __future__ import annotations

from typing import Any

from tests.integration.card_giving.machine import DEVICES, DRIVER_FILE, GROUP, NPU_SMI, VARIABLES, Machine
from tests.integration.waiting import until

COMMON = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES": "void"}
ASCEND = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


def given(box: dict[str, Any]) -> set[str]:
    return {device["PathInContainer"] for device in box["HostConfig"]["Devices"] or ()}


def visible(machine: Machine, box: dict[str, Any]) -> dict[str, str]:
    lines = [line.split("=", 1) for line in machine.seen_by(box, "env").splitlines() if "=" in line]
    return {name: value for name, value in lines if name in VARIABLES or name in COMMON}


GIVEN = {
    "ascend": ({"/dev/davinci5", *ASCEND}, {"ASCEND_RT_VISIBLE_DEVICES": "0"}),
    "hygon": ({"/dev/dri/card2", "/dev/dri/renderD129", "/dev/kfd", "/dev/mkfd"}, {"HIP_VISIBLE_DEVICES": "0"}),
    "kunlun": ({"/dev/xpu3", "/dev/xpuctrl"}, {"XPU_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}),
}
"""Vendor -> what a task with its second card has: device files, and variables."""


def test_a_task_has_its_card_and_nothing_of_its_sibling(machine: Machine) -> None:
    second = {vendor: machine.cards(vendor)[1] for vendor in GIVEN}
    said = dict.fromkeys(VARIABLES, "0,1,2,3")
    tasks = {vendor: machine.submit([card], "forever", env=said) for vendor, card in second.items()}
    for vendor, (files, variables) in GIVEN.items():
        box = machine.box(tasks[vendor])
        assert given(box) == files
        there = set(machine.seen_by(box, "find", "/dev", "-type", "c").split())
        assert there & set(DEVICES) == files, "as the task itself sees it"
        assert visible(machine, box) == {**COMMON, **variables}, "whatever task and image say"
        host = box["HostConfig"]
        assert not host["Privileged"] and not host["CapAdd"] and not host["SecurityOpt"]
        assert {device["CgroupPermissions"] for device in host["Devices"]} == {"rw"}
        assert (host["GroupAdd"] or []) == ([str(GROUP)] if vendor == "hygon" else [])
        assert box["Config"]["Labels"]["heterofleet.cards"] == second[vendor]


def test_the_drivers_tools_come_read_only_beside_a_volume(machine: Machine) -> None:
    """The fence looks at the volume again after create and after start: what the agent adds is no swap."""
    machine.node.sh("mkdir -p /data/giving && echo mine > /data/giving/x")
    volumes = [{"host": "/data/giving", "container": "/vol", "read_only": True}]
    (first, second) = machine.cards("ascend")
    task_id = machine.submit([first, second], "forever", volumes=volumes)
    box = machine.box(task_id)
    assert given(box) == {"/dev/davinci4", "/dev/davinci5", *ASCEND}
    assert visible(machine, box)["ASCEND_RT_VISIBLE_DEVICES"] == "0,1"
    assert machine.seen_by(box, "/usr/local/bin/npu-smi", "info").strip() == NPU_SMI.strip()
    assert machine.seen_by(box, "cat", DRIVER_FILE, "/vol/x").split() == ["Version=98.0.1", "mine"]
    shown = {mount["Destination"]: mount["RW"] for mount in box["Mounts"]}
    assert shown == {"/vol": False, DRIVER_FILE: False, "/usr/local/bin/npu-smi": False}, "and what is not there is not"

    machine.fleet.order(task_id, "sleep")
    machine.fleet.wait(task_id, "sleeping")
    machine.fleet.order(task_id, "wake")
    again = machine.box(task_id)
    assert (again["Id"], given(again)) == (box["Id"], given(box))

    where = [{"host": "/data/giving", "container": "/usr/local/bin"}]
    good = machine.fleet.wait(machine.submit([machine.cards("hygon")[0]], "exit", "0", volumes=where))
    assert good["status"] == "completed", "it is in the way of another vendor's driver only"
    machine.fleet.order(task_id, "stop")
    machine.fleet.wait(task_id)
    refused = machine.fleet.wait(machine.submit([first], "exit", "0", volumes=where))
    assert refused["reason"] == "volume_rejected" and "/usr/local/bin/npu-smi" in refused["error"]


def test_a_missing_device_file_is_named_and_a_task_without_cards_gets_none(machine: Machine) -> None:
    machine.node.sh("rm /dev/xpuctrl")
    try:
        task_id = machine.submit([machine.cards("kunlun")[0]], "forever")
        until("it is handed back", lambda: "gpu_unavailable" in str(machine.fleet.task(task_id)["attempts"]))
        (attempt,) = machine.fleet.task(task_id)["attempts"]
        assert attempt["error"].startswith("/dev/xpuctrl is missing on this node")
    finally:
        machine.node.sh("mknod -m 660 /dev/xpuctrl c 1 3")
    box = machine.box(machine.submit([], "forever", env=dict.fromkeys(VARIABLES, "0")))
    assert given(box) == set() and visible(machine, box) == COMMON
    assert not set(machine.seen_by(box, "find", "/dev", "-type", "c").split()) & set(DEVICES)


def test_a_plain_process_is_let_at_its_card_alone(machine: Machine) -> None:
    """Its number is the host's, where it sees all of them."""
    script = "env | grep VISIBLE | sort; exec sleep 600"
    task_id = machine.submit([machine.cards("ascend")[1]], "/bin/sh", "-c", script, driver="process")
    until("it runs", lambda: machine.fleet.task(task_id)["phase"] == "running")
    unit = f"heterofleet-task-{task_id}.service"
    said = machine.node.run(["systemctl", "show", "--property=DeviceAllow,DevicePolicy", unit]).stdout
    allowed = {line.split("=", 1)[1].split()[0] for line in said.splitlines() if line.startswith("DeviceAllow=")}
    assert allowed == {"/dev/davinci5", *ASCEND} and "DevicePolicy=closed" in said
    machine.fleet.order(task_id, "stop")
    tail = machine.fleet.wait(task_id)["log_tail"].splitlines()
    assert tail == ["ASCEND_RT_VISIBLE_DEVICES=1", "CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=void"]
