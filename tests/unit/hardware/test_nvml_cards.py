"""What NVML's numbers mean for cards, and what is said of a library that fails as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.agent.hardware.detector import Cards
from runtime.agent.hardware.nvidia import with_mps
from runtime.agent.hardware.nvml_cards import cards_of_nvml, notes_of_nvml, program_name
from runtime.agent.hardware.nvml_errors import library_version, module_version, sentence
from runtime.protocol.hardware import Gpu, GpuCapability, GpuCollectFailure, GpuHolder
from tests.unit.hardware.nvml_answers import answer, card, process


@pytest.mark.case("FC-046")
@pytest.mark.parametrize(
    ("mig", "pending", "capable", "note"),
    [
        (False, True, False, "reset needed: MIG mode is Disabled now and Enabled is pending"),
        (True, False, True, "reset needed: MIG mode is Enabled now and Disabled is pending"),
        (True, True, True, None),
        (False, False, False, None),
    ],
)
def test_a_mode_that_waits_for_a_reset_is_not_on(mig: bool, pending: bool, capable: bool, note: Any, tmp_path) -> None:
    """What happened: the mode was taken for on as soon as the tool had reported success."""
    made = card(mig=mig, mig_pending=pending)
    cards = cards_of_nvml(answer(made), [], tmp_path)
    assert [one.mig_capable for one in cards.capabilities] == [capable]
    assert [one.text for one in notes_of_nvml([made])] == ([note] if note else [])
    assert cards.failures == []


@pytest.mark.parametrize(
    ("worn", "codes"),
    [
        ({}, []),
        ({"ecc": 0, "remapped": {"correctable": 1, "uncorrectable": 0, "pending": 0, "failure": 0}}, []),
        ({"ecc": None, "remapped": None}, []),
        ({"ecc": 3, "remapped": None}, ["ecc_uncorrected"]),
        ({"remapped": {"correctable": 0, "uncorrectable": 4, "pending": 1, "failure": 0}}, ["remap_pending"]),
        ({"remapped": {"correctable": 0, "uncorrectable": 9, "pending": 0, "failure": 1}}, ["remap_failed"]),
    ],
)
def test_worn_memory_is_told_and_condemns_nobody(worn: dict[str, Any], codes: list[str]) -> None:
    assert [note.code for note in notes_of_nvml([card(**worn)])] == codes


@pytest.mark.parametrize(("name", "told"), [("NVIDIA GB10", True), ("Orin (nvgpu)", True), ("NVIDIA L4", False)])
def test_a_card_in_the_machine_s_own_memory_has_no_figure(name: str, told: bool, tmp_path) -> None:
    made = card(name=name, memory_total=None, memory_used=None)
    cards = cards_of_nvml(answer(made), [], tmp_path)
    assert cards.gpus[0].memory_total_mib is None and cards.stats[0].memory_used_mib is None
    assert [note.code for note in notes_of_nvml([made])] == (["unified_memory"] if told else [])


def test_processes_are_told_by_slice_without_their_arguments(tmp_path) -> None:
    part = {"uuid": "MIG-1", "name": "NVIDIA H100 MIG 1g.10gb", "gi_id": 9, "ci_id": 0}
    part.update(memory_total=9984 << 20, memory_used=None)
    busy = card(mig=True, slices=[part], processes=[process(1, gi_id=9, ci_id=0), process(2, memory=None)])
    desk = card(1, processes=[process(3, kind="G"), process(4, name="nvidia-cuda-mps-server"), process(5, kind="M")])
    assert cards_of_nvml(answer(busy, desk), [], tmp_path).holders == [
        GpuHolder("MIG-1", 1, "train", 5, ours=False),
        GpuHolder("GPU-0", 2, "train", None, ours=False),
        GpuHolder("GPU-1", 3, "train", 5, ours=None),
        GpuHolder("GPU-1", 4, "nvidia-cuda-mps-server", 5, ours=None),
        GpuHolder("GPU-1", 5, "train", 5, ours=False),
    ]


def test_a_card_that_cannot_list_its_processes_makes_all_unknown(tmp_path) -> None:
    assert cards_of_nvml(answer(card(processes=None), card(1, processes=[process()])), [], tmp_path).holders is None


@pytest.mark.parametrize(
    ("text", "name"), [("/a/b c", "b"), ("VLLM::Engine TP0", "VLLM::Engine"), ("", None), ("/", "/")]
)
def test_programs_without_folder_and_arguments(text: str, name: Any) -> None:
    assert program_name(text) == name


@pytest.mark.parametrize(("code", "condemned"), [(15, True), (16, True), (999, True), (4, False), (20, False)])
def test_only_three_codes_condemn_a_card(code: int, condemned: bool, tmp_path) -> None:
    known = cards_of_nvml(answer(card(0), card(1)), [], tmp_path).gpus
    failures = ({"index": 1, "code": code, "text": "words"},)
    cards = cards_of_nvml(answer(card(0), failures=failures), known, tmp_path)
    assert [gpu.uuid for gpu in cards.gpus] == ["GPU-0", "GPU-1"]
    assert [failure.uuid for failure in cards.failures] == (["GPU-1"] if condemned else [])
    assert [stats.uuid for stats in cards.stats] == ["GPU-0"]


def test_mps_is_claimed_for_whole_cards_that_answer_while_its_daemon_does() -> None:
    gpus = [Gpu("a", "nvidia"), Gpu("b", "nvidia"), Gpu("b1", "nvidia", parent_uuid="b"), Gpu("c", "nvidia")]
    cards = Cards(
        gpus,
        failures=[GpuCollectFailure("c", 2, "lost")],
        capabilities=[GpuCapability("a", mig_capable=False), GpuCapability("b", mig_capable=True)],
    )
    assert with_mps(cards, True) == [GpuCapability("a", False, True), GpuCapability("b", True, False)]
    assert with_mps(cards, False) == [GpuCapability("a", False, False), GpuCapability("b", True, False)]


@pytest.mark.parametrize(
    ("code", "kernel", "library", "words"),
    [
        (18, "550.54.14", "580.1.2", "module 550.54.14 is loaded and library 580.1.2 is installed; reboot"),
        (18, None, None, "the module is loaded and the library is installed; reboot"),
        (17, None, None, "wsl --shutdown"),
        (9, None, None, "load the module nvidia"),
        (23, None, None, "NVML: words (code 23)"),
    ],
)
def test_what_is_wrong_with_the_library_and_what_to_do(code: int, kernel: Any, library: Any, words: str) -> None:
    assert words in sentence({"error": code, "text": "words"}, kernel, library)


def test_the_two_versions_of_a_driver(tmp_path) -> None:
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version: 12.2\n"
    )
    (tmp_path / "open").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@host)\n"
    )
    assert module_version(tmp_path / "version") == "550.54.14"
    assert module_version(tmp_path / "open") == "570.86.15"
    assert module_version(tmp_path / "none") is None
    (tmp_path / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.95.05")
    assert library_version([str(tmp_path / "none"), str(tmp_path)]) == "580.95.05"
    assert library_version([]) is None
