"""The doctor's looks at hardware: tools that are programs on disk, and folders like the kernel's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.agent.doctor import tools as looking
from runtime.agent.doctor.findings import State
from runtime.agent.doctor.infiniband import judge_infiniband, look_at_infiniband
from runtime.agent.doctor.tools import judge_tools, look_at_tools
from runtime.agent.doctor.vendors import VendorFacts, look_at_vendors
from tests.fuzz import texts as corpus
from tests.integration.agent_doctor.test_doctor_command import ROOT, settings_file
from tests.integration.agent_link.test_adapters import adapter

ASCEND, NVIDIA = "0x19e5", "0x10de"


def device(pci: Path, at: str, vendor: str, kind: str, driver: str = "", *, virtual: bool = False) -> None:
    """As the kernel shows one."""
    folder = pci / at
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        home = pci.parent / "drivers" / driver
        home.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(home)
    if virtual:
        (folder / "physfn").symlink_to(pci)


def test_devices_with_the_drivers_that_have_them(tmp_path: Path) -> None:
    """Only accelerators, none that were made for virtual machines; a driver's own files count without any."""
    pci, root = tmp_path / "pci" / "devices", tmp_path / "root"
    device(pci, "0000:17:00.0", NVIDIA, "0x030200", "nvidia")
    device(pci, "0000:17:00.1", NVIDIA, "0x040300", "snd_hda_intel")
    device(pci, "0000:18:00.0", NVIDIA, "0x030000", "nouveau")
    device(pci, "0000:19:00.0", ASCEND, "0x120000")
    device(pci, "0000:19:00.1", ASCEND, "0x120000", virtual=True)
    device(pci, "0000:1a:00.0", ASCEND, "0x030000", "hibmc-drm")
    (root / "dev").mkdir(parents=True)
    (root / "dev" / "mxcd").touch()
    found = look_at_vendors(pci, root)
    assert {name: facts for name, facts in found.items() if facts.here} == {
        "nvidia": VendorFacts("nvidia", {"0000:17:00.0": "nvidia", "0000:18:00.0": "nouveau"}),
        "ascend": VendorFacts("ascend", {"0000:19:00.0": None}),
        "metax": VendorFacts("metax", {}, signed=True),
    }
    assert len(found) == 10 and look_at_vendors(tmp_path / "none", tmp_path / "none").keys() == found.keys()


def test_tools_that_answer_hang_fail_and_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "TOOL_S", 3.0)
    table = tmp_path / "table"
    (text,) = (text.text for text in corpus.own("npu-smi") if text.name == "table_hbm_two_chips")
    table.write_text(text)
    bodies = {
        "npu-smi": f'test "$*" = info && cat {table}',
        "cnmon": "sleep 600",
        "ixsmi": "echo 'error while loading shared libraries: libixml.so: cannot open shared object file'; exit 127",
        "mx-smi": f"cat {table}; kill -SEGV $$",
        "brsmi": "echo the driver went away >&2; exit 3",
    }
    settings = {name: str(tmp_path / name) for name in bodies}
    for name, body in bodies.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "efsmi").write_text("no program")
    settings["efsmi"] = settings["odd-smi"] = str(tmp_path / "efsmi")
    tools = look_at_tools(settings, {name: VendorFacts(name) for name in look_at_vendors()})
    found = {tool.name: tool for tool in tools if tool.name in settings}
    assert (found["npu-smi"].cards, found["npu-smi"].error, found["npu-smi"].configured) == (3, "", True)
    assert "did not answer in 3 s" in found["cnmon"].error
    assert "libixml.so" in found["ixsmi"].error and "/usr/local/corex/lib64" in found["ixsmi"].folders
    assert found["mx-smi"].error == "mx-smi was ended by SIGSEGV"
    assert found["brsmi"].error == "says nothing that is known: the driver went away"
    assert not found["efsmi"].runnable and found["efsmi"].vendor == "enflame"
    assert not found["odd-smi"].runnable and found["odd-smi"].vendor == ""
    whole = judge_tools(tools, {}, set())
    assert whole.state is State.FAILURE
    for words in ("cnmon did not answer", "ldconfig", "hardware.tools.efsmi", "hardware.tools.odd-smi", "3 cards"):
        assert words in f"{whole.text} {whole.advice}"


def test_ports_and_controllers(tmp_path: Path) -> None:
    adapters, pci, files = tmp_path / "adapters", tmp_path / "pci" / "devices", tmp_path / "infiniband"
    device(pci, "0000:41:00.0", "0x15b3", "0x020700", "mlx5_core")
    without = look_at_infiniband([], adapters, pci, files)
    assert without.controllers == {"0000:41:00.0": "mlx5_core"} and not without.user_files
    assert "mlx5_ib" in judge_infiniband(without).advice
    adapter(adapters, "ibx_0")
    adapter(adapters, "ibx_1", state="2: INIT", sm_lid="0x0")
    files.mkdir()
    (files / "uverbs0").touch()
    found = judge_infiniband(look_at_infiniband([{"name": "east", "hcas": ["ibx_0"]}], adapters, pci, files))
    assert found.state is State.WARNING and "ibx_0 port 1: InfiniBand, active, 400 Gb/s, fabric east" in found.text
    assert "ibx_1 port 1: the cable is fine, but no subnet manager" in found.text and "opensm" in found.advice


SEEN = """
mount -t tmpfs none /sys/class && mkdir /sys/class/infiniband && mount --bind "$0" /sys/class/infiniband &&
mount --bind "$1" /sys/bus/pci/devices && shift && exec "$@"
"""


def test_the_lines_of_a_machine_with_devices_and_no_tool(tmp_path: Path) -> None:
    """The whole command, with made folders in the place of the kernel's."""
    adapters, pci = tmp_path / "adapters", tmp_path / "pci" / "devices"
    adapter(adapters, "ibx_0", state="1: DOWN", phys_state="3: Disabled")
    device(pci, "0000:19:00.0", ASCEND, "0x120000")
    config = settings_file(
        tmp_path,
        server_url="http://127.0.0.1:1",
        docker_host=f"unix://{tmp_path}/none.sock",
        fabrics=[{"name": "east", "hcas": ["ibx_0", "ibx_4"]}],
    )
    agent = [sys.executable, "-m", "runtime.agent.main", "doctor", "--json", "--config", str(config)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", SEEN, str(adapters), str(pci), *agent],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    checks = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert done.returncode == 2
    for name, state, words in (
        ("driver", "failure", ["1 device of ascend on PCI (0000:19:00.0) without a driver", "but no npu-smi"]),
        ("tools", "failure", ["1 devices of ascend on PCI, but no npu-smi", "hardware.tools.npu-smi"]),
        ("infiniband", "warning", ["ibx_0 port 1: down: switched off", "names ibx_4, which is not here"]),
    ):
        assert checks[name]["state"] == state, checks[name]
        assert [each for each in words if each not in f"{checks[name]['text']} {checks[name]['advice']}"] == []
