"""Values as text for people, widths of columns, and the exit code that stands for a task's end."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.cli import show
from runtime.cli.errors import ExitCode, exit_code_of
from runtime.cli.follow import end_sentence, unseen
from runtime.cli.output import NARROWEST, fit, printable
from runtime.protocol.problems import CODES, ProblemDocument
from runtime.protocol.times import to_wire

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        ({}, "-"),
        (0, "0"),
        (0.5, "0.5"),
        (80.0, "80"),
        (True, "yes"),
        (False, "no"),
        (["a", None], "a, -"),
        ({"a": 1, "b": None}, "a=1, b=-"),
    ],
)
def test_values(value: Any, text: str) -> None:
    assert show.text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0, "0s"), (59, "59s"), (60, "1m"), (119, "1m"), (3600, "1h"), (90061, "1d"), (86400 * 40, "40d")],
)
def test_ages(seconds: int, text: str) -> None:
    assert show.age(to_wire(NOW - timedelta(seconds=seconds)), NOW) == text


def test_an_age_that_is_not_known() -> None:
    assert show.age(None, NOW) == "-"
    assert show.age("yesterday", NOW) == "yesterday"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0M"), (512, "512M"), (1536, "1.5G"), (81559, "80G"), ("x", "-")]
)
def test_sizes(value: Any, text: str) -> None:
    assert show.mib(value) == text


def test_shares() -> None:
    assert show.share(None, None) == "-"
    assert show.share(None, 64) == "-/64"
    assert show.share(2, 64) == "2/64"


@given(
    st.lists(st.tuples(st.integers(0, 200), st.booleans()), min_size=1, max_size=8),
    st.integers(10, 200),
)
def test_columns_fit_where_they_can(columns: list[tuple[int, bool]], room: int) -> None:
    wanted, keep = [c[0] for c in columns], [c[1] for c in columns]
    widths = fit(wanted, keep, room)
    for width, want, kept in zip(widths, wanted, keep, strict=True):
        assert width == want if kept or want <= NARROWEST else NARROWEST <= width <= want
    if sum(widths) > room:
        assert all(kept or width <= NARROWEST for width, kept in zip(widths, keep, strict=True))
    if sum(wanted) <= room:
        assert widths == wanted


@given(st.text())
def test_nothing_printed_steers_a_terminal(text: str) -> None:
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [(code, status, None) for code, statuses in CODES.items() for status in statuses]
    + [("no code", 500, ExitCode.FAILED), ("no code", 418, ExitCode.REFUSED)],
)
def test_every_problem_has_an_exit_code(code: str, status: int, exit_code: ExitCode | None) -> None:
    by_status = {401: 3, 403: 3, 404: 5, 503: 4}
    expected = exit_code if exit_code is not None else by_status.get(status, 6)
    if code == "route_not_found":
        expected = ExitCode.FAILED
    assert exit_code_of(ProblemDocument(status, code, "")) == expected


def test_the_sentence_of_an_end() -> None:
    task = {"id": "t1", "status": "failed", "reason": "exited", "exit_code": 3, "node_id": "n1", "error": "no input"}
    assert end_sentence(task) == "task t1 failed (exited) with exit code 3 on n1: no input"
    assert end_sentence({"id": "t1", "status": "cancelled"}) == "task t1 cancelled"


LONG = "".join(f"line {n}\n" for n in range(40))


@pytest.mark.parametrize(
    ("shown", "tail", "rest"),
    [
        ("", "", ""),
        ("", "all", "all"),
        ("all", "all", ""),
        ("on", "one", "e"),
        ("gone " + LONG, LONG, ""),
        ("gone " + LONG, LONG + "more", "more"),
        ("x" * 300, "x" * 200, ""),
        (LONG + LONG[:100], LONG, LONG[100:]),
        ("other", "one", None),
        ("one\n", "", ""),
        ("x", "y", None),
    ],
)
def test_what_a_report_adds_to_what_was_shown(shown: str, tail: str, rest: str | None) -> None:
    assert unseen(shown, tail) == rest
