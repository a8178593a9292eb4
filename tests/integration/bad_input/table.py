"""The table of bad input as it was seen in this run, printed at its end."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Union

import pytest

WIDTHS = (34, 26, 100)


@dataclass(frozen=True)
class Seen:
    """What came of one bad input: the exit code or problem code, and the sentence."""

    answer: Union[int, str]
    sentence: str


SEEN: list[tuple[str, Seen]] = []


def note(case: str, seen: Seen, answer: Union[int, str], parts: tuple[str, ...]) -> None:
    """Write the row down and hold it against what is wanted: the code, and what was found, wanted, to be done."""
    SEEN.append((case, seen))
    assert seen.answer == answer, seen
    for part in parts:
        assert part in seen.sentence, f"{part!r} is not in {seen.sentence!r}"
    assert "Traceback" not in seen.sentence


def lines() -> list[str]:
    """The table as text; empty when no row was run. What was printed is forgotten."""
    if not SEEN:
        return []
    rows = [("case", "exit or code", "sentence"), *((case, str(seen.answer), seen.sentence) for case, seen in SEEN)]
    SEEN.clear()
    made = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, WIDTHS)]
        for number in range(max(len(cell) for cell in cells)):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            made.append("  ".join(part.ljust(width) for part, width in zip(parts, WIDTHS)).rstrip())
    return made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """For the conftest of every folder that has rows; whoever comes first prints them all."""
    found = lines()
    if found:
        terminalreporter.section("bad input, as seen", sep="-")
        for line in found:
            terminalreporter.write_line(line)
