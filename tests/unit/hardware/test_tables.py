"""Cells of vendors' tables."""

from __future__ import annotations

from typing import Optional

import pytest

from runtime.agent.hardware.parsers import tables
from runtime.agent.hardware.values import number

TABLE = (
    "Mon Jan  6 10:00:00 2025\r\n"
    "+----+------------------+\r\n"
    "| ID | Memory           |\r\n"
    "|====+==================|\r\n"
    "| \x1b[4m0\x1b[0m  | 1MiB / 1024MiB   |\r\n"
    "| N/A|                  |\r\n"
    "+----+------------------+\r\n"
    "| 1  | N/A              |\r\n"
)


def test_rows_are_split_by_bars_and_rules_end_a_block() -> None:
    assert list(tables.blocks(TABLE)) == [
        [["ID", "Memory"]],
        [["0", "1MiB / 1024MiB"], ["N/A", ""]],
        [["1", "N/A"]],
    ]
    assert [row[0] for row in tables.rows(TABLE)] == ["ID", "0", "N/A", "1"]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("+-----+-----+", True),
        ("|=====+=====|", True),
        ("-------------", True),
        ("+=====+=====+   ", True),
        ("", False),
        ("| - | - |", False),
        ("| N/A |", False),
        ("---- heading ----", False),
    ],
)
def test_rules(line: str, rule: bool) -> None:
    assert tables.is_rule(line) is rule


@pytest.mark.parametrize(
    ("cell", "used", "total"),
    [
        ("1MiB / 81559MiB", 1, 81559),
        ("504 / 8064 MB", 504, 8064),
        ("303  / 15171", 303, 15171),
        ("60982/65536 MiB", 60982, 65536),
        ("2MiB(16384MiB)", 2, 16384),
        ("2 GiB / 16 GiB", 2048, 16384),
        ("1048576 / 2097152 KB", 1024, 2048),
        ("N/A / 8064 MB", None, 8064),
        ("8MiB / [N/A]", 8, None),
        ("N/A", None, None),
        ("Not Supported", None, None),
        ("", None, None),
        (None, None, None),
        ("12MiB", None, None),
    ],
)
def test_used_and_total(cell: Optional[str], used: Optional[int], total: Optional[int]) -> None:
    assert tables.used_total_mib(cell) == (used, total)


@pytest.mark.parametrize(
    ("cell", "value"),
    [("35℃", 35.0), ("35°C", 35.0), ("52.0C", 52.0), ("7,5 %", None), ("27 W", 27.0), ("35℃C", None), ("C", None)],
)
def test_numbers_with_the_units_of_tables(cell: str, value: Optional[float]) -> None:
    assert number(cell) == value
