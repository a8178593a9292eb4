"""From facts to verdicts, as tables: cards against what is on PCI, vendors' tools, InfiniBand ports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from runtime.agent.doctor.advice import advice_for
from runtime.agent.doctor.cards import CardFacts, judge_driver
from runtime.agent.doctor.findings import EXIT_GOOD, exit_code
from runtime.agent.doctor.infiniband import ADVICE, InfinibandFacts, judge_infiniband
from runtime.agent.doctor.tools import ToolFacts, judge_tools
from runtime.agent.doctor.vendors import VendorFacts
from runtime.agent.hardware.infiniband.look import Looked
from runtime.agent.hardware.infiniband.ports import Fault, Port
from runtime.protocol.hardware import Gpu
from tests.unit.agent_doctor.test_doctor_verdicts import cards, gpu, says

AT = [f"0000:{bus}:00.0" for bus in ("17", "2a", "65", "b3")]


def vendors(name: str = "nvidia", *drivers: Optional[str], signed: bool = False) -> dict[str, VendorFacts]:
    """One vendor with a device for each driver."""
    return {name: VendorFacts(name, dict(zip(AT, drivers)), signed), "musa": VendorFacts("musa")}


NONE = vendors()
GONE = Gpu("GPU-gone", "nvidia", 5, pci_bus_id="00000000:65:00.0")


@pytest.mark.parametrize(
    ("facts", "shown", "state", "words"),
    [
        (cards(gpu("a"), gpu("b")), NONE, "ok", ["2 x nvidia-h100-80gb-hbm3-80g by nvml"]),
        (cards(gpu("a"), gpu("a/1", parent="a")), NONE, "ok", ["nvml"]),
        (cards(), NONE, "warning", ["no card answers", "no device of a known vendor", "install their driver"]),
        (cards(), vendors("ascend", signed=True), "warning", ["no card answers", "devices of ascend are here"]),
        (cards(gpu("v", "virtual")), NONE, "warning", ["no card answers"]),
        (cards(gpu("a", problems=("GPU is lost (NVML code 15)",))), NONE, "warning", ["GPU is lost", "power it off"]),
        (cards(gpu("a"), failures=({"uuid": None, "index": 3, "reason": "GPU requires reset"},)), NONE, "warning",
         ["card 3", "reset the card"]),
        (cards(gpu("a"), gone=(GONE,)), NONE, "failure",
         ["nvidia card 5 (GPU-gone, at 00000000:65:00.0) is missing", "power it off", "after a week"]),
        (cards(gpu("a"), gone=(GONE,), failures=({"uuid": GONE.uuid, "index": 5, "reason": "missing"},)), NONE,
         "failure", ["GPU-gone"]),
        (cards(gpu("k", "kunlun"), gone=(Gpu("kunlun-3", "kunlun", 3),)), NONE, "failure",
         ["a card of kunlun is missing"]),
        (replace(cards(gpu("a")), unread="hardware.json: Permission denied"), NONE, "unknown", ["Permission denied"]),
        (cards({**gpu("a"), "health": {"ok": None, "problems": ["x"]}}, error="NVML lists no card; 1 were known"), NONE,
         "failure", ["1 were known"]),
        (cards(error="NVML: Driver/library version mismatch (code 18)"), NONE, "failure", ["mismatch", "reboot"]),
        (cards(error="NVML: Driver Not Loaded (code 9)"), NONE, "failure", ["modprobe nvidia"]),
        (cards(error="NVML did not answer in 10 s"), NONE, "failure", ["did not answer", "Xid"]),
        # Against what is on PCI.
        (cards(gpu("a"), gpu("b")), vendors("nvidia", "nvidia", "nvidia"), "ok", []),
        (cards(gpu("a")), vendors("nvidia", "nvidia", "nvidia"), "warning", ["2 devices of nvidia", "1 cards answer"]),
        (cards(gpu("a"), gpu("b"), gpu("c")), vendors("nvidia", "nvidia"), "ok", []),
        (cards(error="no npu-smi"), vendors("ascend", None, None), "failure",
         ["2 devices of ascend", AT[0], AT[1], "without a driver", "dmesg", "modprobe"]),
        (cards(gpu("a")), vendors("nvidia", "nvidia", "vfio-pci"), "warning",
         ["1 device of", "virtual machines", AT[1]]),
        (cards(gpu("a")), vendors("nvidia", "nvidia", "nouveau"), "warning",
         ["driven by nouveau", "blacklist nouveau"]),
        (cards(error="x"), vendors("kunlun", None, None, None, None), "failure", ["4 devices", "..."]),
    ],
)  # fmt: skip
def test_driver(facts: CardFacts, shown: dict[str, VendorFacts], state: str, words: list[str]) -> None:
    says(judge_driver(facts, shown), state, *words)


@pytest.mark.parametrize(("plugged", "state"), [(True, "warning"), (False, "ok")])
def test_a_vendor_that_is_silent_beside_another_is_told_if_its_devices_are_here(plugged: bool, state: str) -> None:
    facts = cards(gpu("a"))
    facts.report["detection"].append({"vendor": "ascend", "found": False, "why": "npu-smi did not answer in 10 s"})
    shown = {**vendors("nvidia", "nvidia"), **vendors("ascend", *(["davinci"] if plugged else []))}
    says(judge_driver(facts, shown), state, *(["ascend: npu-smi did not answer"] if plugged else []))


@pytest.mark.parametrize(
    ("words", "kind", "vendor", "advice"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", None, "nvidia", "reboot"),
        ("it couldn't communicate with the NVIDIA driver.", None, "nvidia", "modprobe nvidia"),
        ("its driver is away", "driver_not_loaded", "biren", "modprobe that of biren's driver"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", None, "nvidia", "user-space"),
        ("ixsmi: error while loading shared libraries: libixml.so: cannot open", "not_initialized", "iluvatar",
         "add /opt/libs to /etc/ld.so.conf.d"),
        ("dcmi module initialize failed. ret is -8005", None, "ascend", "as root"),
        ("dcmi model initialized failed, because the device is used. ret is -8020", None, "ascend", "container"),
        ("NVML: Insufficient Permissions (code 4)", None, "nvidia", "as root"),
        ("/x/npu-smi: Permission denied", None, "ascend", "as root"),
        ("GPU access blocked by the operating system", None, "nvidia", "wsl --shutdown"),
        ("nvidia-smi is stuck in the kernel", None, "nvidia", "dmesg"),
        ("No devices were found", "no_devices", "nvidia", "lspci"),
        ("something else", None, "nvidia", "dmesg"),
        ("something else", "reset_required", "musa", "reset the card"),
    ],
)  # fmt: skip
def test_what_a_drivers_words_mean(words: str, kind: Optional[str], vendor: str, advice: str) -> None:
    assert advice in advice_for(words, kind=kind, vendor=vendor, folders="/opt/libs")


SMI = ToolFacts("nvidia-smi", "nvidia", "/usr/bin/nvidia-smi", cards=2, seconds=0.1)
NPU = ToolFacts("npu-smi", "ascend", "/usr/local/bin/npu-smi", cards=8, seconds=0.2, folders="/opt/libs")
HUNG = "nvidia-smi did not answer in 8 s"
LOADER = "npu-smi: error while loading shared libraries: libdcmi.so: cannot open shared object file"


@pytest.mark.parametrize(
    ("tools", "shown", "answering", "state", "words"),
    [
        ([SMI], vendors("nvidia", "nvidia"), {"nvidia"}, "ok", ["/usr/bin/nvidia-smi answers in 0.1 s with 2 cards"]),
        ([ToolFacts("nvidia-smi", "nvidia")], vendors("nvidia", "nvidia"), {"nvidia"}, "ok",
         ["nvidia-smi is not here"]),
        ([ToolFacts("nvidia-smi", "nvidia")], NONE, set(), "ok", ["no vendor's tool is here"]),
        ([], NONE, set(), "ok", ["no vendor's tool is here"]),
        ([ToolFacts("npu-smi", "ascend")], vendors("ascend", "davinci"), set(), "failure",
         ["1 devices of ascend on PCI, but no npu-smi", "hardware.tools.npu-smi", "install ascend's driver"]),
        ([ToolFacts("npu-smi", "ascend")], vendors("ascend", signed=True), {"nvidia"}, "warning",
         ["device files of ascend, but no npu-smi"]),
        ([replace(SMI, error=HUNG)], vendors("nvidia", "nvidia"), {"nvidia"}, "warning",
         [HUNG, "/usr/bin/nvidia-smi", "wanted an answer in 8 s", "dmesg"]),
        ([replace(SMI, error=HUNG)], NONE, set(), "failure", ["did not answer", "dmesg"]),
        ([replace(SMI, error="couldn't communicate with the NVIDIA driver", kind="driver_not_loaded")], NONE, set(),
         "failure", ["couldn't communicate", "no device of nvidia is here", "modprobe"]),
        ([replace(NPU, error=LOADER, kind="not_initialized")], vendors("ascend", "davinci"), set(), "failure",
         ["libdcmi.so", "/opt/libs", "ldconfig"]),
        ([replace(NPU, error="ends with status 1")], vendors("ascend", "davinci"), {"nvidia"}, "warning", ["status 1"]),
        ([replace(NPU, cards=0)], vendors("ascend", "davinci"), set(), "failure",
         ["knows no card, 1 of ascend are on PCI", "lspci"]),
        ([replace(NPU, cards=0)], NONE, {"nvidia"}, "ok", []),
        ([replace(SMI, path="/opt/none", configured=True, runnable=False)], NONE, {"nvidia"}, "failure",
         ["hardware.tools.nvidia-smi", "/opt/none"]),
        ([replace(SMI, runnable=False)], NONE, {"nvidia"}, "failure", ["repair the driver's installation"]),
        ([SMI, ToolFacts("odd-smi", "", "/opt/odd-smi", configured=True)], NONE, {"nvidia"}, "ok", ["/opt/odd-smi"]),
    ],
)  # fmt: skip
def test_tools(
    tools: list[ToolFacts], shown: dict[str, VendorFacts], answering: set[str], state: str, words: list[str]
) -> None:
    says(judge_tools(tools, shown, answering), state, *words)


IB = Port("ibx_0", 1, state="active", phys_state="LinkUp", rate_gbps=400.0, lid=5, sm_lid=2, link_layer="InfiniBand")
ROCE = replace(IB, hca="ibx_1", link_layer="Ethernet", lid=0, sm_lid=0, rate_gbps=100.0)
DOWN: dict[str, Any] = {"state": "down", "phys_state": "Polling"}
EAST = [{"name": "east", "hcas": ["ibx_0", "ibx_1"]}]


def seen(*ports: Port, unreadable: tuple[str, ...] = (), **more: Any) -> InfinibandFacts:
    return InfinibandFacts(Looked(list(ports), list(unreadable)), **more)


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (seen(), "ok", ["no InfiniBand adapter", "multi-node replicas"]),
        (seen(IB, replace(IB, port=2)), "ok",
         ["ibx_0 port 1, ibx_0 port 2: InfiniBand, active, 400 Gb/s, no fabric named"]),
        (seen(IB, ROCE, fabrics=EAST), "ok", ["400 Gb/s, fabric east", "ibx_1 port 1: RoCE, active, 100 Gb/s"]),
        (seen(replace(IB, state="init", sm_lid=0)), "warning", ["no subnet manager", "opensm", "sminfo"]),
        (seen(replace(IB, sm_lid=0)), "warning", ["no subnet manager is known", "sminfo"]),
        (seen(replace(IB, **DOWN)), "warning", ["nothing answers", "cable"]),
        (seen(replace(IB, state="down", phys_state="Disabled")), "warning", ["switched off", "fabrics"]),
        (seen(replace(IB, state="down", gid_zero=True)), "warning", ["virtual function", "node_guid"]),
        (seen(replace(IB, state="armed")), "warning", ["armed", "dmesg"]),
        (seen(replace(ROCE, **DOWN)), "ok", ["Ethernet", "in no fabric"]),
        (seen(replace(ROCE, **DOWN), IB, fabrics=EAST), "warning", ["ibx_1 port 1: down", "cable"]),
        (seen(replace(IB, state=None)), "unknown", ["cannot be read"]),
        (seen(IB, unreadable=("ibx_9",)), "warning", ["ibx_9 tells nothing", "dmesg"]),
        (seen(IB, fabrics=[{"name": "west", "hcas": ["ibx_7"]}]), "warning",
         ["fabric west names ibx_7", "here are ibx_0"]),
        (seen(IB, ROCE, fabrics=[*EAST, {"name": "west", "hcas": ["ibx_0"]}]), "warning",
         ["ibx_0 is named by fabric east and by west; east counts"]),
        (seen(fabrics=EAST), "warning", ["fabric east names ibx_0", "here is none"]),
        (seen(controllers={AT[0]: None}), "warning", ["1 InfiniBand controllers", "without a driver", "modprobe"]),
        (seen(controllers={AT[0]: "mlx5_core"}), "warning", ["driven by mlx5_core", "mlx5_ib"]),
        (seen(IB, controllers={AT[0]: "mlx5_core"}), "ok", []),
        (seen(IB, user_files=False), "warning", ["no program can use", "ib_uverbs"]),
        (seen(user_files=False), "ok", []),
        (InfinibandFacts(error="/sys/class/infiniband did not answer in 10 s"), "unknown", ["did not answer", "dmesg"]),
    ],
)  # fmt: skip
def test_infiniband(facts: InfinibandFacts, state: str, words: list[str]) -> None:
    found = judge_infiniband(facts)
    says(found, state, *words)
    assert (exit_code([found]) == EXIT_GOOD) == (state == "ok")


def test_there_is_advice_for_every_fault() -> None:
    assert set(ADVICE) == set(Fault)


def test_a_card_of_which_nothing_is_known_now_does_not_answer() -> None:
    unheard = {**gpu("a"), "health": {"ok": None, "problems": ["it was here before"]}}
    assert cards(unheard, error="nvidia-smi lists no card; 1 were known").real == []
