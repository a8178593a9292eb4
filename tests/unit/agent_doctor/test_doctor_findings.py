"""States and their sum, the two forms of the output, and looking at what hangs."""

from __future__ import annotations

import threading
import time

import pytest

from runtime.agent.deadline import Late, within
from runtime.agent.doctor.findings import as_json, as_text, exit_code, failure, finding, ok, unknown, warning
from runtime.agent.doctor.looking import Check, Shared, examine

GOOD, ODD, BAD, DARK = ok("fine"), warning("odd", "even", "look"), failure("bad", "good", "act"), unknown("dark", "ask")


@pytest.mark.parametrize(
    ("points", "state"),
    [
        ([GOOD], "ok"),
        ([GOOD, DARK], "unknown"),
        ([DARK, ODD, GOOD], "warning"),
        ([ODD, BAD, DARK, GOOD], "failure"),
        ([], "unknown"),
    ],
)
def test_the_heaviest_point_counts(points: list, state: str) -> None:
    assert finding("x", points).state.value == state


@pytest.mark.parametrize(
    ("points", "code"),
    [([[GOOD], [GOOD]], 0), ([[GOOD], [DARK]], 1), ([[ODD], [GOOD]], 1), ([[ODD], [BAD]], 2), ([[]], 1), ([], 0)],
)
def test_exit_code(points: list, code: int) -> None:
    assert exit_code([finding("x", one) for one in points]) == code


def test_json_is_the_contracts_and_the_heaviest_comes_first() -> None:
    found = [finding("one", [GOOD]), finding("two", [GOOD, BAD, ODD])]
    assert as_json(found) == {
        "checks": [
            {"name": "one", "state": "ok", "text": "fine", "advice": ""},
            {
                "name": "two",
                "state": "failure",
                "text": "bad; wanted good. odd; wanted even. fine",
                "advice": "act. look",
            },
        ],
        "exit_code": 2,
    }


def test_people_get_a_line_a_check_with_what_to_do_below_it() -> None:
    text = as_text([finding("one", [GOOD]), finding("two", [BAD, ok("x " * 90)]), finding("three", [DARK])])
    lines = text.splitlines()
    assert lines[0] == "ok       one        fine"
    assert lines[1].startswith("failure  two        bad; wanted good. x x")
    assert "                    -> act" in lines
    assert lines[-1] == "1 failed, 1 not known"
    assert max(map(len, lines)) <= 118
    assert as_text([finding("one", [GOOD])]).splitlines()[-1] == "all 1 checks are good"


def test_what_hangs_is_left_behind_and_named() -> None:
    never = threading.Event()
    began = time.monotonic()
    try:
        found = examine(
            [
                Check("hangs", lambda: finding("hangs", [ok(str(never.wait()))]), lambda: "a dead disk"),
                Check("works", lambda: finding("works", [GOOD])),
                Check("breaks", lambda: finding("breaks", [ok(str(1 // 0))])),
            ],
            whole_s=0.3,
        )
    finally:
        never.set()
    assert time.monotonic() - began < 30
    assert [(one.name, one.state.value) for one in found] == [
        ("hangs", "unknown"),
        ("works", "ok"),
        ("breaks", "unknown"),
    ]
    assert "a dead disk" in found[0].text and "no answer in 0.3 s" in found[0].text
    assert "ZeroDivisionError" in found[2].text


def test_one_look_serves_several_checks() -> None:
    looks = []
    shared = Shared(lambda: looks.append(1) or len(looks))
    assert [within(5, shared.get), shared.get(), shared.get()] == [1, 1, 1]
    broken = Shared(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            broken.get()


def test_a_deadline() -> None:
    never = threading.Event()
    with pytest.raises(Late):
        within(0.05, never.wait)
    never.set()
    assert within(5, lambda: 7) == 7
