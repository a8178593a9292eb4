"""nvidia-smi's forms: fixtures of our own, each with what it says and no more."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware.parsers.nvidia_smi import parse
from runtime.agent.hardware.reading import BAD, WARNING, Blame, Reading

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus" / "nvidia-smi"


def text_of(name: str) -> str:
    return (CORPUS / f"{name}.txt").read_text("utf-8")


def reading_of(name: str) -> Reading:
    arguments = CORPUS / f"{name}.args"
    return parse(shlex.split(arguments.read_text()) if arguments.exists() else [], text_of(name))


def figures(reading: Reading) -> list[tuple[Any, ...]]:
    return [
        (c.index, c.bus_id, c.memory_total_mib, c.memory_used_mib, c.utilization_pct, c.temperature_c, c.power_w)
        for c in reading.cards
    ]


OLD = [
    (0, "00000000:2D:00.0", 5941, 1342, 63.0, 57.0, 88.0),
    (1, "00000000:86:00.0", 16160, 0, 0.0, 34.0, 27.0),
]


def test_the_table_of_old_drivers_has_two_lines_a_card() -> None:
    reading = reading_of("plain_driver_430")
    assert figures(reading) == OLD
    first, second = reading.cards
    assert (first.name, first.name_cut, first.power_limit_w, first.more) == (
        "GeForce GTX 166...",
        True,
        120.0,
        {"fan_pct": 41.0, "compute_mode": "Default"},
    )
    assert second.more == {"fan_pct": None, "ecc_uncorrectable": 2, "compute_mode": "E. Process"}
    assert (reading.devices, reading.driver_version, reading.errors) == (2, "430.34", [])
    assert reading.more == {"cuda_version": "10.1", "name_truncated": True}
    assert reading.processes == [
        {"gpu": 0, "pid": 2210, "name": "/usr/lib/xorg/Xorg", "memory_mib": 96, "type": "G"},
        {"gpu": 0, "pid": 18843, "name": "python | tee", "memory_mib": 1235, "type": "C"},
    ]


def test_an_integrated_card_has_no_bus_and_no_figures() -> None:
    reading = reading_of("plain_integrated")
    assert figures(reading) == [(0, None, None, None, None, None, None)]
    (card,) = reading.cards
    assert card.name == "Orin (nvgpu)" and card.health is None and card.failure is None
    assert card.more == {"fan_pct": None, "mig_mode": None, "memory_unified": True}
    assert reading.processes == []


def test_slices_are_counted_by_instance_and_a_dead_card_by_its_name() -> None:
    reading = reading_of("plain_slices")
    assert [card.index for card in reading.cards] == [0, 1, 3] and reading.devices == 3
    first, second, dead = reading.cards
    assert (first.utilization_pct, first.memory_used_mib, first.more["mig_mode"]) == (None, 5231, "Enabled")
    assert (second.more["mig_mode"], reading.more["mig_pending"]) == ("Disabled*", [1])
    assert (dead.health, dead.health_raw, dead.name, dead.temperature_c) == (BAD, "ERR!", None, None)
    assert dead.failure == "ERR! in place of its name" and dead.memory_total_mib == 81920
    assert [(part["gi"], part["ci"], part["dev"], part["sm"]) for part in reading.more["mig_devices"]] == [
        (1, 0, 0, 28),
        (1, 1, 1, 14),
        (13, 0, 2, 14),
    ]
    assert reading.more["mig_memory_sum_mib"] == {"used": 5162, "total": 50048}
    assert reading.processes == [
        {"gpu": 0, "gi": 1, "ci": 0, "pid": 90211, "name": "/opt/serve/bin/worker", "memory_mib": 5120, "type": "M+C"},
        {"gpu": 1, "pid": 90377, "name": None, "memory_mib": None, "type": "C"},
    ]


def test_keys_are_taken_by_their_headings() -> None:
    reading = reading_of("keys_two_cards")
    assert figures(reading) == [
        (0, "00000001:18:00.0", 97871, 17, 0.0, 44.0, 121.5),
        (1, "00000001:3A:00.0", None, None, None, None, None),
    ]
    sick, lost = reading.cards
    assert (sick.health, sick.health_raw) == (BAD, "Reset Required: Yes")
    assert sick.more["ecc_uncorrectable"] == 7 and sick.more["remapped_rows"] == {
        "correctable": 1,
        "uncorrectable": 8,
        "pending": False,
        "failure": True,
    }
    assert (lost.name, lost.health, lost.failure) == (None, BAD, "GPU is lost")
    assert (reading.driver_version, reading.more["cuda_version"], reading.more["attached_reported"]) == (
        "612.10",
        "13.4",
        2,
    )
    assert reading.more["mig_pending"] == [0]
    assert [(error.kind, error.blamed) for error in reading.errors] == [
        ("reset_required", (Blame(0, "00000001:18:00.0"),)),
        ("gpu_lost", (Blame(1, "00000001:3A:00.0"),)),
    ]
    assert reading.processes == [{"gpu": 0, "pid": 4242, "name": "/usr/bin/trainer", "memory_mib": 9}]


def test_xml_says_the_same_under_other_names() -> None:
    reading = reading_of("xml_slices")
    assert figures(reading) == [(2, "00000000:AF:00.0", 24576, 33, None, 35.0, 31.25)]
    (card,) = reading.cards
    assert (card.name, card.serial, card.power_limit_w) == ("NVIDIA A30 & more", "1320000000077", 165.0)
    assert (card.health, card.health_raw) == (WARNING, "Remapped Rows: Uncorrectable Error 2, Pending Yes")
    assert card.failure is None
    assert reading.more["mig_devices"] == [
        {"gpu": 2, "gi": 3, "ci": 0, "dev": 0, "memory_used_mib": 8, "memory_total_mib": 5952, "sm": 14}
    ]
    assert reading.processes == [{"gpu": 2, "gi": 3, "ci": 0, "pid": 777, "name": "./a.out", "memory_mib": 6}]


@pytest.mark.case("FC-043")
def test_a_lost_card_is_blamed_and_the_rows_of_the_others_stay() -> None:
    """What happened: with one lost card every query failed as a whole, and healthy cards looked broken."""
    reading = reading_of("csv_one_lost")
    assert figures(reading) == [
        (0, "00000000:17:00.0", 46068, 1, 0.0, 30.0, None),
        (2, "00000000:CA:00.0", 24576, None, None, 61.0, None),
    ]
    (error,) = reading.errors
    assert (error.kind, error.blamed) == ("gpu_lost", (Blame(1, "0000:65:00.0"),))
    assert error.text == "GPU is lost.  Reboot the system to recover this GPU"
    assert [card.health for card in reading.cards] == [None, None]


@pytest.mark.case("FC-046")
def test_a_pending_mode_is_not_the_mode() -> None:
    """What happened: after the switch the tool reported success while the card still needed a reset."""
    reading = reading_of("csv_one_lost")
    assert [card.more["mig_mode"] for card in reading.cards] == [None, "Disabled"]
    assert reading.more["mig_pending"] == [2]


def test_rows_without_a_header_are_samples_of_the_fields_asked_for() -> None:
    reading = reading_of("csv_no_header")
    assert [(card.index, card.name, card.memory_total_mib, card.utilization_pct) for card in reading.cards] == [
        (0, "NVIDIA GB10", None, 13.0),
        (1, "A name, with comma", 24564, 7.0),
    ]
    assert parse([], text_of("csv_no_header")).cards == []


def test_a_list_has_uuids_of_cards_and_slices() -> None:
    reading = reading_of("list")
    assert [(card.index, card.name, card.uuid) for card in reading.cards] == [
        (0, "NVIDIA A30", "GPU-01020304-0506-0708-090a-0b0c0d0e0f00"),
        (2, "NVIDIA GeForce RTX 3090", "GPU-0a0b0c0d-0506-0708-090a-0b0c0d0e0f00"),
    ]
    assert [(part["gpu"], part["dev"], part["profile"]) for part in reading.more["mig_devices"]] == [
        (0, 0, "2g.12gb"),
        (0, 1, "1g.6gb+me"),
    ]
    assert reading.more["mig_devices"][0]["uuid"] == "MIG-GPU-01020304-0506-0708-090a-0b0c0d0e0f00/1/0"


def test_profiles_by_the_header_of_their_table() -> None:
    assert reading_of("mig_profiles").more["profiles"] == [
        {
            "gpu": 1,
            "name": "1g.6gb",
            "id": 14,
            "free": 2,
            "total": 4,
            "memory_gib": 5.81,
            "sm": 14,
            "dec": 0,
            "enc": 0,
            "ce": 1,
            "jpeg": 0,
            "ofa": 0,
        },
        {
            "gpu": 1,
            "name": "1g.6gb+me",
            "id": 21,
            "free": 1,
            "total": 1,
            "memory_gib": 5.81,
            "sm": 14,
            "dec": 1,
            "enc": 0,
            "ce": 1,
            "jpeg": 1,
            "ofa": 1,
        },
    ]


@pytest.mark.case("FC-045")
def test_what_a_failed_batch_made_is_told_beside_the_error() -> None:
    """What happened: a later partition failed, and those already made were neither undone nor reported."""
    reading = reading_of("mig_half_made")
    assert reading.more["created"] == {
        "gi": [{"gpu": 1, "gi": 3, "profile": "1g.6gb", "profile_id": 14}],
        "ci": [{"gpu": 1, "gi": 3, "ci": 0, "profile": "1g.6gb", "profile_id": 0}],
    }
    (error,) = reading.errors
    assert (error.text, error.kind) == ("Insufficient Resources", "insufficient_resources")
    assert error.blamed == (Blame(1, None, 5),)


@pytest.mark.parametrize(
    ("text", "kind", "blamed"),
    [
        ("Unable to determine the device handle for GPU0000:07:00.0: Unknown Error", "device_handle", "0000:07:00.0"),
        ("Unable to determine the device handle for gpu 0000:0B:00.0: GPU requires reset", "reset_required", None),
        ("Failed to initialize NVML: Driver/library version mismatch", "version_mismatch", None),
        ("Failed to initialize NVML: Unknown Error", "nvml_unknown", None),
        ("Failed to initialize NVML: GPU access blocked by the operating system", "os_blocked", None),
        ("Failed to initialize NVML: Uninitialized", "not_initialized", None),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Do.",
            "driver_not_loaded",
            None,
        ),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please do.", None, None),
        ("bash: nvidia-smi: command not found", "tool_missing", None),
        ('Field "power.drain" is not a valid field to query.', None, None),
        ("Unable to destroy GPU instance ID  1 from GPU  0: In use by another client", "in_use", None),
        ("Unable to enable MIG Mode for GPU 00000000:07:00.0: Insufficient Permissions", None, "00000000:07:00.0"),
    ],
)
def test_sentences_of_failure_show_no_card(text: str, kind: Optional[str], blamed: Optional[str]) -> None:
    reading = parse([], f"{text}\n")
    (error,) = reading.errors
    assert (error.kind, reading.cards, reading.devices) == (kind, [], None)
    assert error.text in text
    if blamed is not None:
        assert [blame.bus_id for blame in error.blamed] == [blamed]


def test_no_devices_is_a_count_of_none() -> None:
    reading = parse([], "No devices were found\n")
    assert (reading.devices, reading.cards, reading.errors[0].kind) == (0, [], "no_devices")


@pytest.mark.parametrize(
    "text", ["", "\n", "hello", "| a | b |", "a, b\n1, 2\n", "<nvidia_smi_log", "GPU 0: x", "\x1b["]
)
def test_other_text_shows_nothing(text: str) -> None:
    reading = parse([], text)
    assert (reading.cards, reading.devices, reading.errors) == ([], None, [])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="crlf"),
        pytest.param(lambda text: "a line | before\n" + text + "and one after\n", id="around"),
        pytest.param(lambda text: "".join(line + "\n" + line + "\n" for line in text.splitlines()), id="doubled"),
        pytest.param(lambda text: text.replace("  ", "    "), id="wider"),
        pytest.param(lambda text: text.replace("GPU  Name", "\x1b[4mGPU\x1b[0m  Name"), id="ansi"),
        pytest.param(lambda text: text.replace("63%", "11%").replace("57C", "20C") + text, id="two samples"),
        pytest.param(lambda text: text[: text.index("| Processes")], id="cut off"),
        pytest.param(lambda text: "".join(f"{line[:-2]} | x |\n" for line in text.splitlines()), id="one more column"),
    ],
)
def test_a_table_survives_what_happens_to_texts(change: Any) -> None:
    assert figures(parse([], change(text_of("plain_driver_430")))) == OLD


def test_a_number_cut_in_two_is_no_number() -> None:
    text = text_of("plain_driver_430")
    cut = parse([], text[: text.index("5941MiB") + 2])
    assert figures(cut) == [(0, "00000000:2D:00.0", None, None, None, 57.0, 88.0)]
    keys = text_of("keys_two_cards")
    cut = parse([], keys[: keys.index("97871 MiB") + 3])
    assert [card.memory_total_mib for card in cut.cards] == [None]
    xml = text_of("xml_slices")
    cut = parse([], xml[: xml.index("24576 MiB") + 3])
    assert [(card.name, card.memory_total_mib) for card in cut.cards] == [("NVIDIA A30 & more", None)]
    assert cut.more["mig_devices"][0]["memory_total_mib"] == 5952
