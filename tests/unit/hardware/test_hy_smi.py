"""hy-smi's forms, with invented values: tables by their headers, JSON that is none, lines, CSV, virtual cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.agent.hardware.parsers.hy_smi import parse

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus" / "hy-smi"
TABLE = (CORPUS / "table.txt").read_text()
OLD = """
========= System Management Interface =========
DCU  Temp   PwrCap  Fan   AvgPwr  DCU%  VRAM%
3    30.0c  280.0W  1.0%  38.0W   5%    70%
===============================================
"""


@pytest.mark.parametrize("head", ["HCU", "DCU", "GPU"])
def test_columns_are_found_by_their_names(head: str) -> None:
    first, second = parse([], TABLE.replace("HCU", head)).cards
    assert (first.index, first.temperature_c, first.power_w, first.power_limit_w) == (0, 51.0, 81.0, 900.0)
    assert (first.utilization_pct, first.more["memory_used_pct"]) == (33.5, 17)
    assert (second.index, second.power_w, second.memory_total_mib, second.health) == (2, None, None, None)


def test_in_any_order() -> None:
    (card,) = parse([], OLD).cards
    assert (card.index, card.power_w, card.power_limit_w, card.utilization_pct) == (3, 38.0, 280.0, 5.0)
    assert card.more == {"memory_used_pct": 70, "fan_pct": 1.0}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text + text,
        lambda text: "warning: something\n" + text,
        lambda text: text.replace("     ", " "),
        lambda text: "".join(f"{line}\n{line}\n" for line in text.splitlines()),
    ],
    ids=["crlf", "twice", "a line before", "narrow", "doubled lines"],
)
def test_the_same_cards_however_it_is_printed(change: Any) -> None:
    assert parse([], change(TABLE)) == parse([], TABLE)


def test_a_cell_that_is_not_there_leaves_the_number_only() -> None:
    (card, _) = parse([], TABLE.replace("81.0W      auto", "           auto")).cards
    assert (card.index, card.power_w, card.temperature_c, card.power_limit_w) == (0, None, None, None)


def test_json_is_read_key_by_key_though_a_comma_is_missing_and_keys_are_empty() -> None:
    first, second = parse(["--json"], (CORPUS / "json.txt").read_text()).cards
    assert (first.name, first.serial, first.bus_id) == ("DCU Model", "TX1122334455", "0000:0b:00.0")
    assert (first.power_w, first.temperature_c, first.utilization_pct) == (80.5, 39.0, 4.0)
    assert (first.memory_total_mib, first.memory_used_mib) == (65520, 2)
    assert first.more["unique_id"] == "aabbccdd00112233"
    assert (second.index, second.name, second.bus_id) == (1, None, "0000:0c:00.0")


def test_lines_of_a_card() -> None:
    first, second = parse(["--showproductname"], (CORPUS / "names.txt").read_text()).cards
    assert (first.index, first.name, first.more["vendor"]) == (0, None, "Some Vendor Co., Ltd.")
    assert (second.index, second.name) == (1, "Model X1")
    (card,) = parse(["--showbus"], "HCU[4]\t\t: PCI Bus: 0000:9f:00.0\n").cards
    assert (card.index, card.bus_id) == (4, "0000:9f:00.0")


def test_csv_has_the_numbers_of_its_rows_names() -> None:
    first, second = parse(["--csv"], "device,Card Series,DCU use (%)\ncard1,Model A,3\ncard2,,4\n").cards
    assert (first.index, first.name, first.utilization_pct) == (1, "Model A", 3.0)
    assert (second.index, second.name, second.utilization_pct) == (2, None, 4.0)


def test_a_virtual_card_has_the_part_that_it_was_given() -> None:
    (card,) = parse(["virtual", "-show-device-info"], (CORPUS / "virtual.txt").read_text()).cards
    assert (card.index, card.memory_total_mib) == (0, 4000)
    assert card.more == {"actual_device": 3, "compute_units": 12, "memory_total_bytes": 4194304000}


@pytest.mark.parametrize("text", ["", "0 1 2 3\n", "{}\n", "card0\n", "HCU\n", "\x00"])
def test_what_is_no_output_of_it_says_nothing(text: str) -> None:
    reading = parse([], text)
    assert (reading.cards, reading.devices, reading.errors) == ([], None, [])


def test_a_tool_that_is_not_there() -> None:
    assert [error.kind for error in parse([], "sh: 1: hy-smi: not found\n").errors] == ["tool_missing"]
