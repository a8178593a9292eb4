"""Places in a container's output: found again by frames, whatever was rotated away meanwhile."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from runtime.agent.drivers.errors import EngineUnavailable
from runtime.agent.drivers.log_frames import Entry, entries, look_at, pieces_after, rotates_at
from runtime.agent.drivers.output import LogLost

OPENED = "2026-11-30T12:00:00.000000000Z"


def stamp(number: int) -> str:
    return f"2026-11-30T10:00:00.{number:09d}Z"


def line(number: int, text: str, stream: int = 1) -> Entry:
    return Entry(stream, stamp(number), text.encode())


LINES = [line(number, f"line {number}\n") for number in range(1, 7)]
ALL = "".join(f"line {n}\n" for n in range(1, 7))
LONG = [line(7, "x" * 10), line(7, "y" * 10), line(7, "z" * 10 + "\n")]
"""A line of three frames."""


def test_frames_are_read_wherever_the_stream_is_cut() -> None:
    wire = b"".join(
        struct.pack(">BxxxL", entry.stream, len(entry.stamp) + 1 + len(entry.data))
        + entry.stamp.encode()
        + b" "
        + entry.data
        for entry in [*LINES, line(8, ""), line(9, "to stderr\n", 2)]
    )
    dice = random.Random(7)
    for _ in range(50):
        cuts = sorted(dice.sample(range(len(wire)), 9))
        pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)])]
        assert list(entries(pieces)) == [*LINES, line(8, ""), line(9, "to stderr\n", 2)]


@pytest.mark.parametrize(
    "wire",
    [
        b"a plain stream without frames",
        struct.pack(">BxxxL", 1, 1 << 30) + b"2026 endless",
        struct.pack(">BxxxL", 1, 5) + b"nodat",
    ],
)
def test_what_is_no_such_stream_is_refused(wire: bytes) -> None:
    with pytest.raises(EngineUnavailable):
        list(entries([wire]))


def never_asked() -> Any:
    raise AssertionError("the engine's files are small: their settings do not matter")


@pytest.mark.parametrize(
    ("found", "after", "data", "whole"),
    [
        pytest.param(LINES, "", ALL, True, id="from the beginning"),
        pytest.param([], "", "", True, id="nothing was printed"),
        pytest.param(LINES, f"1 {stamp(4)} 1 7", "line 5\nline 6\n", True, id="behind a line"),
        pytest.param(LINES, f"1 {stamp(4)} 1 5", "4\nline 5\nline 6\n", True, id="in the middle of a line"),
        pytest.param(LINES, f"1 {stamp(6)} 1 7", "", True, id="at the end"),
        pytest.param(LINES[3:], f"1 {stamp(2)} 1 7", "line 4\nline 5\nline 6\n", False, id="it was rotated away"),
        pytest.param(LINES[3:], f"1 {stamp(4)} 1 7", "line 5\nline 6\n", True, id="the place is the first left"),
        pytest.param(LINES, f"2 {stamp(4)} 1 7", ALL, False, id="other stream"),
        pytest.param([*LINES, *LONG], f"1 {stamp(7)} 2 4", "y" * 6 + "z" * 10 + "\n", True, id="in a long line"),
        pytest.param(LINES, "another program's mark", ALL, False, id="no mark"),
        pytest.param(
            [line(9, "late\n"), line(3, "clock was set back\n"), line(4, "on\n")], f"1 {stamp(9)} 1 5",
            "clock was set back\non\n", True, id="a clock that was set back",
        ),
    ],
)  # fmt: skip
def test_what_lies_behind_a_place(found: list[Entry], after: str, data: str, whole: bool) -> None:
    rest = look_at(found, after, 1 << 20, None, never_asked).rest
    assert (rest.data.decode(), rest.size, rest.whole) == (data, len(data), whole)
    if found:
        last = found[-1]
        number = sum(1 for entry in found if entry[:2] == last[:2])
        assert rest.mark == f"1 {last.stamp} {number} {len(last.data)}"


def test_a_long_line_whose_first_frames_may_be_gone_proves_no_place() -> None:
    """The frames of one line have one timestamp: which of them are left cannot be told when the first ones may be
    rotated away. What may have been read already is not shown again, and the gap is said."""
    cut = [LONG[1], LONG[2], *[line(8, "on\n")]]
    rest = look_at(cut, f"1 {stamp(7)} 2 4", 1 << 20, 3, never_asked).rest
    assert (rest.data, rest.whole) == (b"z" * 6 + b"\non\n", False)
    rest = look_at([LONG[2], line(8, "on\n")], f"1 {stamp(7)} 2 4", 1 << 20, 2, never_asked).rest
    assert (rest.data, rest.whole) == (b"on\n", False)


def test_only_the_last_bytes_are_kept_and_all_are_counted() -> None:
    many = [line(number, "ab" * 500 + "\n") for number in range(5000)]
    rest = look_at(many, "", 100, None, lambda: 1 << 40).rest
    assert (len(rest.data), rest.size, rest.whole) == (100, 5000 * 1001, True)


@pytest.mark.parametrize(
    ("frames", "asked", "rotates", "whole"),
    [
        (1000, None, 10_000_000, True),  # far from the first rotation that loses something
        (1000, None, 1_000_000, False),  # may have rotated
        (1000, None, None, False),  # nobody knows how it rotates
        (1000, 1000, 1 << 60, False),  # only a part was asked for: there may be more before it
        (999, 1000, 1 << 60, True),  # all that is there came
    ],
)
def test_the_beginning_is_claimed_only_where_nothing_can_have_been_rotated_away(
    frames: int, asked: int | None, rotates: int | None, whole: bool
) -> None:
    found = [line(number, "b" * 1000 + "\n") for number in range(frames)]
    assert look_at(found, "", 1 << 20, asked, lambda: rotates).rest.whole is whole


def test_a_reading_that_cannot_prove_anything_any_more_ends() -> None:
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield line(read, "c" * 1000 + "\n")

    assert look_at(endless(), "", 1 << 20, None, never_asked, give_up_at=3_000_000).complete is False
    assert read < 4000


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"Type": "json-file", "Config": {"max-size": "25600k", "max-file": "2"}}, 25_600_000),
        ({"Type": "json-file", "Config": {"max-size": "10m", "max-file": "5"}}, 40_000_000),
        ({"Type": "json-file", "Config": {"max-size": "10M"}}, 0),  # one file: it is begun anew
        ({"Type": "json-file", "Config": {}}, 1 << 62),
        ({"Type": "json-file", "Config": {"max-size": "lots"}}, None),
        ({"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2", "labels": "x"}}, None),
        ({"Type": "local", "Config": {"max-size": "10m", "max-file": "2"}}, None),
        ({}, None),
    ],
)
def test_when_rotation_may_have_taken_something(config: dict[str, Any], wanted: int | None) -> None:
    assert rotates_at(config) == wanted


def test_a_stream_goes_on_behind_its_mark() -> None:
    found = pieces_after([*LINES, line(8, "new\n")], f"1 {stamp(6)} 1 3", OPENED)
    pieces = list(found)
    assert [piece.data for piece in pieces] == [b"e 6\n", b"new\n"]
    assert pieces[0].mark(4) == f"1 {stamp(6)} 1 7"
    assert pieces[0].mark(1) == f"1 {stamp(6)} 1 4"


@pytest.mark.parametrize(
    ("found", "after"),
    [
        ([Entry(1, "2026-11-30T12:00:00.000000001Z", b"younger than the question\n")], f"1 {stamp(1)} 1 7"),
        ([line(number, "z\n") for number in range(2, 6000)], f"1 {stamp(1)} 1 7"),
        ([LONG[1], LONG[2]], f"1 {stamp(7)} 1 10"),  # it may be another frame of that line
    ],
)
def test_a_stream_whose_place_is_gone_says_so(found: list[Entry], after: str) -> None:
    with pytest.raises(LogLost):
        list(pieces_after(found, after, OPENED))
