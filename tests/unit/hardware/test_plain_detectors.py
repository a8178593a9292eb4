"""Detectors made of a description, on tools that answer as we say: Ascend and Hygon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware.detector import BY_ABSENCE, FULL, NONE, CollectorError
from runtime.agent.hardware.tools import Output, ToolError, ToolRunner
from runtime.agent.hardware.vendors.ascend import ASCEND
from runtime.agent.hardware.vendors.hygon import HYGON
from runtime.agent.hardware.vendors.plain import AGAIN_EVERY, PlainDetector, Vendor
from runtime.protocol.hardware import Gpu

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
ASCEND_TABLE = (CORPUS / "npu-smi" / "table_hbm_two_chips.txt").read_text()
BOARD = """
	NPU ID                         : 9
	Serial Number                  : 2100AA
	Software Version               : 99.5.1
	PCIe Bus Info                  : 0000:2A:00.0
	Chip Count                     : 1
"""
HYGON_TABLE = """
HCU     Temp     AvgPwr     Perf     PwrCap     VRAM%      HCU%      Mode
0       51.0C    81.0W      auto     900.0W     17%        33.5%     Normal
1       52.0C    N/A        auto     900.0W     0%         0.0%      Normal
"""
MEMORY = """{"card0": {"vram Total Memory (MiB)": "65520", "vram Total Used Memory (MiB)": "11138"},
"card1": {"vram Total Memory (MiB)": "65520", "vram Total Used Memory (MiB)": "2"}}"""
NAMES = """{"card0": {"Card Series": "K999", "PCI Bus": "0000:0b:00.0 --> SN: T1", "Serial Number": "T1"},
"card1": {"Card Series": "K999", "PCI Bus": "0000:0c:00.0 --> SN: T2", "Serial Number": "T2"}}"""

Answer = Callable[[Sequence[str]], str]


class Told(ToolRunner):
    """Runs nothing: ``answer`` gives what a tool prints for its arguments, or raises ToolError."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[tuple[str, ...]] = []
        self.environment: Mapping[str, str] = {}

    def run(self, name: str, command: Sequence[str], **options: Any) -> Output:
        self.asked.append(tuple(command[1:]))
        self.environment = options["environment"]
        return Output(self.answer(command[1:]), "", 0)


def made(
    about: Vendor, answer: Answer, tmp_path: Path, tools: Optional[dict[str, str]] = None
) -> tuple[PlainDetector, Told]:
    runner = Told(answer)
    tools = {about.tools[0].name: "/fake/tool"} if tools is None else tools
    return PlainDetector(about, runner, tools, sysfs=tmp_path / "pci", root=tmp_path), runner


def hygon(table: str = HYGON_TABLE, memory: str = MEMORY, names: str = NAMES) -> Answer:
    def answer(arguments: Sequence[str]) -> str:
        text = names if "--showbus" in arguments else memory if "--json" in arguments else table
        if not text:
            raise ToolError("hy-smi did not answer in 10 s")
        return text

    return answer


def ascend(arguments: Sequence[str]) -> str:
    return BOARD if "board" in arguments else ASCEND_TABLE


def plug(tmp_path: Path, vendor: str, pci_class: str) -> None:
    device = tmp_path / "pci" / "0000:0b:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor)
    (device / "class").write_text(pci_class)


def test_ascend_chips_are_cards_and_a_sick_one_is_named(tmp_path: Path) -> None:
    detector, runner = made(ASCEND, ascend, tmp_path)
    assert detector.detect().found
    cards = detector.collect([])
    assert [(gpu.uuid, gpu.index, gpu.gpu_class, gpu.memory_total_mib) for gpu in cards.gpus] == [
        ("00000000:1A:00.0/0", 4, "ascend-ascend999-64g", 65000),
        ("00000000:1C:00.0/1", 5, "ascend-ascend999-64g", 65000),
        ("00000000:2A:00.0/0", 6, "ascend-ascend999-64g", 65000),
    ]
    assert [failure.uuid for failure in cards.failures] == ["00000000:1C:00.0/1"]
    assert [note.uuid for note in cards.notes] == ["00000000:2A:00.0/0"]
    assert [stats.memory_used_mib for stats in cards.stats] == [3001, 20002, 3003]
    assert cards.gpus[0].driver_version == "99.5.1"
    assert "/usr/local/Ascend/driver/lib64" in runner.environment["LD_LIBRARY_PATH"]
    assert [holder.pid for holder in cards.holders or []] == [778899]
    assert detector.loss_detection == FULL


def test_hygon_cards_have_names_and_memory_from_what_is_asked_beside(tmp_path: Path) -> None:
    detector, _ = made(HYGON, hygon(), tmp_path)
    cards = detector.collect([])
    assert [(gpu.uuid, gpu.gpu_class) for gpu in cards.gpus] == [
        ("00000000:0B:00.0", "hygon-k999-64g"),
        ("00000000:0C:00.0", "hygon-k999-64g"),
    ]
    assert [(one.memory_used_mib, one.power_w, one.utilization_pct) for one in cards.stats] == [
        (11138, 81.0, 33.5),
        (2, None, 0.0),
    ]
    assert detector.loss_detection == BY_ABSENCE


@pytest.mark.parametrize(("memory", "names"), [("", ""), ("", NAMES), (MEMORY, ""), ("junk", "junk")])
def test_the_plain_table_is_enough(tmp_path: Path, memory: str, names: str) -> None:
    detector, _ = made(HYGON, hygon(memory=memory, names=names), tmp_path)
    cards = detector.collect([])
    assert [gpu.index for gpu in cards.gpus] == [0, 1]
    assert [one.temperature_c for one in cards.stats] == [51.0, 52.0]
    keyed = names == NAMES
    assert detector.loss_detection == (BY_ABSENCE if keyed else NONE)
    assert cards.gpus[0].uuid == ("00000000:0B:00.0" if keyed else "hygon-0")


def test_a_question_that_is_refused_later_changes_no_cards_name(tmp_path: Path) -> None:
    detector, runner = made(HYGON, hygon(), tmp_path)
    before = detector.collect([]).gpus
    runner.answer = hygon(names="")
    again, _ = made(HYGON, hygon(names=""), tmp_path)
    assert [gpu.uuid for gpu in detector.collect(before).gpus] == [gpu.uuid for gpu in before]
    assert [gpu.uuid for gpu in again.collect(before).gpus] == [gpu.uuid for gpu in before]


def test_a_card_that_is_gone_is_missed_by_its_bus_id_though_the_others_move_up(tmp_path: Path) -> None:
    detector, runner = made(HYGON, hygon(), tmp_path)
    before = detector.collect([]).gpus
    shorter = HYGON_TABLE.rsplit("\n", 2)[0]
    moved = NAMES.splitlines()[1].replace("card1", "card0")
    runner.answer = hygon(shorter, MEMORY, "{" + moved)
    assert [(gpu.uuid, gpu.index) for gpu in detector.collect(before).gpus] == [("00000000:0C:00.0", 0)]
    runner.answer = hygon(names="")
    detector.collect(before)
    runner.answer = hygon(shorter, names="")
    with pytest.raises(CollectorError, match="does not tell them apart"):
        detector.collect(before)


def test_what_lasts_is_asked_once_and_sooner_while_it_was_refused(tmp_path: Path) -> None:
    for names, times in ((NAMES, 1), ("", 2)):
        detector, runner = made(HYGON, hygon(names=names), tmp_path)
        for _ in range(AGAIN_EVERY + 1):
            detector.collect([])
        assert sum("--showbus" in arguments for arguments in runner.asked) == times


def test_a_tool_that_hangs_is_asked_nothing_more_of_what_only_adds(tmp_path: Path) -> None:
    def answer(arguments: Sequence[str]) -> str:
        if "board" in arguments:
            raise ToolError("npu-smi did not answer in 10 s")
        return ASCEND_TABLE

    detector, runner = made(ASCEND, answer, tmp_path)
    assert len(detector.collect([]).gpus) == 3
    assert [arguments for arguments in runner.asked if "board" in arguments] == [("info", "-t", "board", "-i", "8")]


def test_a_tool_that_fails_is_present_and_found_is_it_not(tmp_path: Path) -> None:
    detector, _ = made(ASCEND, lambda arguments: "dcmi module initialize failed. ret is -8005", tmp_path)
    answer = detector.detect()
    assert (answer.found, answer.present) == (False, True) and "dcmi module initialize failed" in answer.why
    with pytest.raises(CollectorError, match="dcmi module initialize failed"):
        detector.collect([Gpu("u", "ascend", 0)])


def test_a_device_without_a_tool_is_present_but_another_of_its_maker_is_not(tmp_path: Path) -> None:
    detector, _ = made(ASCEND, ascend, tmp_path, tools={})
    assert not detector.detect().present
    plug(tmp_path, "0x19e5", "0x030000")
    assert not detector.detect().present
    (tmp_path / "pci" / "0000:0b:00.0" / "class").write_text("0x120000")
    answer = detector.detect()
    assert answer.present and not answer.found and "no npu-smi" in answer.why


def test_a_tool_of_a_name_that_others_use_counts_only_where_its_vendor_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "rocm-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    detector, _ = made(HYGON, hygon(), tmp_path, tools={})
    assert not detector.detect().found
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "mkfd").touch()
    assert detector.detect().found
    named, _ = made(HYGON, hygon(), tmp_path / "elsewhere", tools={"rocm-smi": str(tool)})
    assert named.detect().found
