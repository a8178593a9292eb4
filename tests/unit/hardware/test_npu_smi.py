"""npu-smi's forms, with invented values: tables of several versions, queries of one card, lists, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import pytest

from runtime.agent.hardware.parsers.npu_smi import parse
from runtime.agent.hardware.reading import BAD, OK, WARNING, CardReading, Reading

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus" / "npu-smi"
HBM = (CORPUS / "table_hbm_two_chips.txt").read_text()
DDR = (CORPUS / "table_ddr_after_log.txt").read_text()


def places(reading: Reading) -> list[tuple[Any, ...]]:
    return [(card.index, card.more["npu_id"], card.more["chip_id"], card.bus_id) for card in reading.cards]


def test_with_a_column_of_hbm_that_is_the_memory() -> None:
    reading = parse(["info"], HBM)
    assert reading.devices == 3 and reading.more == {"npu_smi_version": "99.1.0"}
    assert places(reading) == [
        (4, 8, 0, "0000:1A:00.0"),
        (5, 8, 1, "0000:1C:00.0"),
        (6, 9, 0, "0000:2A:00.0"),
    ]
    first, second, third = reading.cards
    assert (first.memory_used_mib, first.memory_total_mib) == (3001, 65000)
    assert (first.more["ddr_used_mib"], first.more["ddr_total_mib"]) == (12, 96)
    assert (first.power_w, first.temperature_c, first.utilization_pct) == (151.5, 41.0, 7.0)
    assert second.power_w is None
    assert [card.health for card in reading.cards] == [OK, BAD, WARNING]
    assert [card.failure for card in reading.cards] == [None, "health Alarm", None]
    assert third.health_raw == "Warning"


def test_without_it_memory_usage_is_and_text_before_the_table_is_none() -> None:
    reading = parse(["info"], DDR)
    assert places(reading) == [(2, 300, 0, "0000:DA:00.0"), (3, 300, 1, "0000:DA:00.0")]
    assert [(card.memory_used_mib, card.memory_total_mib, card.power_w) for card in reading.cards] == [
        (2703, 8192, None),
        (2704, 8191, None),
    ]
    assert reading.processes is None


def test_processes_are_on_the_chip_they_name() -> None:
    assert parse(["info"], HBM).processes == [
        {"index": 5, "npu_id": 8, "chip_id": 1, "pid": 778899, "name": "python_serving_", "memory_mib": 17003}
    ]


@pytest.mark.parametrize(
    ("change", "cards"),
    [
        (lambda text: text.replace("\n", "\r\n"), 3),
        (lambda text: text.replace("  ", " "), 3),
        (lambda text: text + text, 3),
        (lambda text: "".join(f"{line}\n{line}\n" for line in text.splitlines()), 3),
        (lambda text: "\x1b[1m" + text.replace("OK", "\x1b[32mOK\x1b[0m"), 3),
        (lambda text: text[: text.index("| 9     Ascend999")], 2),
        (lambda text: text[: text.index("| 1     5 ")], 1),
    ],
    ids=["crlf", "narrow", "twice", "doubled lines", "colours", "cut off", "cut off in a chip"],
)
def test_the_same_cards_however_it_is_printed(change: Any, cards: int) -> None:
    assert parse(["info"], change(HBM)).cards == parse(["info"], HBM).cards[:cards]


def test_a_value_that_is_not_there_shifts_no_other_into_its_place() -> None:
    (card, *_) = parse(
        ["info"], HBM.replace("| 151.5       41                0    / 0 ", "|             41                0    / 0 ")
    ).cards
    assert (card.power_w, card.temperature_c) == (None, None)
    assert card.memory_used_mib == 3001


@pytest.mark.parametrize(
    ("text", "kind", "code", "likely"),
    [
        ("dcmi module initialize failed. ret is -8005\n", "not_initialized", -8005, None),
        (
            "DrvMngGetConsoleLogLevel failed. (ret=4)\ndcmi module initialize failed. ret is -8005\n",
            "not_initialized",
            -8005,
            "no permission on /dev/davinci_manager",
        ),
        ("dcmi model initialized failed, because the device is used. ret is -8020", "device_used", -8020, None),
        ("bash: npu-smi: command not found", "tool_missing", None, None),
    ],
)
def test_a_tool_that_failed_blames_nobody(text: str, kind: str, code: Optional[int], likely: Optional[str]) -> None:
    reading = parse(["info"], text)
    assert (reading.cards, reading.devices) == ([], None)
    assert [(error.kind, error.blamed) for error in reading.errors] == [(kind, ())]
    assert (reading.more.get("code"), reading.more.get("likely")) == (code, likely)


def test_a_block_belongs_to_the_chip_id_at_its_end() -> None:
    reading = parse(["info", "-t", "usages", "-i", "77"], (CORPUS / "usages.txt").read_text())
    assert [(card.more["chip_id"], card.memory_total_mib, card.utilization_pct) for card in reading.cards] == [
        (0, 44000, 11.0),
        (1, 43000, 12.0),
    ]


def test_chips_of_several_cards_in_one_text_stay_apart() -> None:
    block = "\tNPU ID : {npu}\n\tChip Count : 1\n\n\tNPU Temperature (C) : {temperature}\n\tChip ID : 0\n\n"
    text = block.format(npu=3, temperature=44) + block.format(npu=40, temperature=45)
    reading = parse(["info", "-t", "temp"], text)
    assert [(card.index, card.more["npu_id"], card.temperature_c) for card in reading.cards] == [
        (3, 3, 44.0),
        (40, 40, 45.0),
    ]


def test_a_sick_chips_code_is_told_with_its_health() -> None:
    text = " Health Status : Critical\n Error Code : 80E01801\n Error Information : node type=DDR\n"
    (card,) = parse(["info", "-t", "health", "-i", "6", "-c", "0"], text).cards
    assert (card.index, card.health, card.failure) == (6, BAD, "health Critical")
    assert card.more["error_code"] == "80E01801"


def test_a_controller_is_no_device() -> None:
    text = """
    NPU ID           Chip ID          Chip Logic ID    Chip Name
    2                0                0                Ascend 99X
    2                1                -                Mcu
    """
    reading = parse(["info", "-m"], text)
    assert (reading.devices, reading.cards) == (1, [])
    assert reading.more["mcu"] == [{"npu_id": 2, "chip_id": 1}]


def test_every_pair_of_cards_has_its_link() -> None:
    text = """NPU0       NPU1       NPU2       CPU Affinity
NPU0       X          HCCS       SYS        0-7
NPU1       HCCS       X          SYS        0-7,16-23
NPU2       SYS        SYS        X          8-15
"""
    more = parse(["info", "-t", "topo"], text).more
    assert more["pairs"] == {"NPU0-NPU1": "HCCS", "NPU0-NPU2": "SYS", "NPU1-NPU2": "SYS"}
    assert more["links"] == ["HCCS", "SYS"]
    assert more["affinity"]["NPU1"] == {"cpu_affinity": "0-7,16-23"}


@pytest.mark.parametrize("text", ["", "\n\n", "| | |\n", "hello | world | ok\n", "\x00", "+---+\n"])
def test_what_is_no_output_of_it_says_nothing(text: str) -> None:
    reading = parse(["info"], text)
    assert (reading.cards, reading.devices, reading.errors) == ([], None, [])
    assert CardReading() not in reading.cards
