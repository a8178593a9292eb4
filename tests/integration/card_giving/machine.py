"""A node that has, beside its own cards, the tools and device files of three vendors; the hardware alone is not there.

Every device file is a null device: what the lab's engine lets a container have.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from tests.faults.fleet import Fleet
from tests.integration.waiting import until
from tests.lab import Node, task_image

NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 98.0.1                   Version: 98.0.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 64    Ascend988           | OK            | 90.5        40                0    / 0             |
| 0     4                   | 0000:4A:00.0  | 0           0    / 0          101  / 32000         |
+===========================+===============+====================================================+
| 65    Ascend988           | OK            | 91.5        41                0    / 0             |
| 0     5                   | 0000:4B:00.0  | 0           0    / 0          102  / 32000         |
+===========================+===============+====================================================+
"""
NPU_MAP = """\
NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
64                             0                              0                              Ascend988
64                             1                              -                              Mcu
65                             0                              1                              Ascend988
"""
HY_SMI = """\
HCU     Temp     AvgPwr     Perf     PwrCap     VRAM%      HCU%      Mode
0       41.0C    61.0W      auto     500.0W     0%         0.0%      Normal
1       42.0C    62.0W      auto     500.0W     0%         0.0%      Normal
"""
HY_NAMES = """\
{"card0": {"Card Series": "K98", "PCI Bus": "0000:5a:00.0 --> SN: A1", "Serial Number": "A1"},
"card1": {"Card Series": "K98", "PCI Bus": "0000:5b:00.0 --> SN: A2", "Serial Number": "A2"}}
"""
HY_MEMORY = """\
{"card0": {"vram Total Memory (MiB)": "32000", "vram Total Used Memory (MiB)": "3"},
"card1": {"vram Total Memory (MiB)": "32000", "vram Total Used Memory (MiB)": "3"}}
"""
XPU_SMI = """\
Runtime Version: 4.9
Driver Version: 4.9
  DEVICES
-------------------------------------------------------------------------------------------
| DevID |   PCI Addr   | Model |  SN  |    INODE   | UseRate |    L3     |    Memory    |
-------------------------------------------------------------------------------------------
|     0 | 0000:6a:00.0 | K298  | S1   | /dev/xpu2  |     0 % | 0 / 16 MB | 0 / 8064 MB  |
|     1 | 0000:6a:00.0 | K298  | S1   | /dev/xpu3  |     0 % | 0 / 16 MB | 0 / 8064 MB  |
-------------------------------------------------------------------------------------------
"""
TOOLS = {
    "/usr/local/bin/npu-smi": [("info", NPU_SMI), ("info -m", NPU_MAP)],
    "/opt/hyhal/bin/hy-smi": [("", HY_SMI), ("*--showbus*", HY_NAMES), ("*--showmeminfo*", HY_MEMORY)],
    "/usr/local/xpu/bin/xpu_smi": [("", XPU_SMI)],
}
DRIVER_FILE = "/usr/local/Ascend/driver/version.info"
DEVICES = (
    *("/dev/davinci4", "/dev/davinci5", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
    *("/dev/dri/card1", "/dev/dri/renderD128", "/dev/dri/card2", "/dev/dri/renderD129", "/dev/kfd", "/dev/mkfd"),
    *("/dev/xpu2", "/dev/xpu3", "/dev/xpuctrl"),
)
LINKS = {"5a": (1, 128), "5b": (2, 129)}
GROUP = 4711
IMAGE = "hf-lab/task-with-cards:1"
"""An image that says by itself which cards it sees: all of every vendor."""

VARIABLES = ("ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
             "ASCEND_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")  # fmt: skip


def equip(node: Node) -> None:
    """Tools, device files and the image."""
    for path, answers in TOOLS.items():
        cases = "".join(f"{_case(words)}) cat <<'END'\n{text}END\n;;\n" for words, text in answers)
        node.put(path, f'#!/bin/sh\ncase "$*" in\n{cases}*) echo unknown option >&2; exit 2;;\nesac\n', 0o755)
    node.put(DRIVER_FILE, "Version=98.0.1\n")
    links = "".join(
        f"ln -sf ../card{card} /dev/dri/by-path/pci-0000:{bus}:00.0-card; "
        f"ln -sf ../renderD{render} /dev/dri/by-path/pci-0000:{bus}:00.0-render; "
        for bus, (card, render) in LINKS.items()
    )
    changes = " ".join(f"--change 'ENV {name}=0,1,2,3'" for name in VARIABLES)
    node.sh(
        f"mkdir -p /dev/dri/by-path; {links}"
        f"for path in {' '.join(DEVICES)}; do [ -e $path ] || mknod -m 660 $path c 1 3; done; chgrp {GROUP} /dev/kfd; "
        f"old=$(docker create {task_image.NAME}); docker commit {changes} $old {IMAGE} >/dev/null; docker rm $old"
    )


def strip(node: Node) -> None:
    """As it was."""
    node.sh(
        f"rm -rf /dev/dri {' '.join(DEVICES)} {' '.join(TOOLS)} /opt/hyhal /usr/local/xpu /usr/local/Ascend "
        f"/data/giving; "
        f"docker rmi -f {IMAGE} >/dev/null 2>&1 || :"
    )


def _case(words: str) -> str:
    return words if words.startswith("*") else f'"{words}"'


class Machine:
    """The fleet's only node, with those cards."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.node: Node = fleet.nodes[0]
        self._made: list[str] = []

    def cards(self, vendor: str) -> list[str]:
        """Uuids in the order of the tool."""
        told = self.fleet.plane.get("/api/v1/gpus")["gpus"]
        return [card["uuid"] for card in sorted(told, key=lambda card: card["index"]) if card["vendor"] == vendor]

    def submit(self, uuids: list[str], *command: str, **members: Any) -> str:
        task_id = f"g-{secrets.token_hex(4)}"
        body = {"id": task_id, "name": task_id, "command": list(command), "stop_grace_s": 0, **members}
        if uuids:
            body["gpus"] = {"count": len(uuids), "uuids": uuids}
        if body.get("driver") != "process":
            body.setdefault("image", IMAGE)
        status, answer = self.fleet.plane.request("POST", "/api/v1/tasks", body)
        assert status == 201, answer
        self._made.append(task_id)
        return task_id

    def box(self, task_id: str) -> dict[str, Any]:
        """The engine's description of the task's container, once its program runs."""
        self.fleet.wait(task_id, "running")

        def running() -> Any:
            ids = self.node.docker("ps", "-q", "--filter", f"label=heterofleet.task={task_id}").stdout.split()
            return ids and json.loads(self.node.docker("inspect", *ids).stdout)

        (found,) = until(f"the container of {task_id} runs", running)
        return dict(found)

    def seen_by(self, box: dict[str, Any], *program: str) -> str:
        """What a program in the container says."""
        return self.node.docker("exec", box["Id"], *program).stdout

    def end(self) -> None:
        for task_id in self._made:
            self.fleet.plane.request("DELETE", f"/api/v1/tasks/{task_id}")
        for task_id in self._made:
            gone = lambda task=task_id: self.fleet.plane.request("GET", f"/api/v1/tasks/{task}")[0] == 404  # noqa: E731
            until(f"{task_id} is gone", gone, 60)
        self._made.clear()
