"""Between a task and the server: bounded, whole characters, every byte accounted for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.agent.drivers.output import LogRest
from runtime.agent.tasks.log_buffer import Allowance, LogBuffer, whole_characters
from runtime.agent.tasks.log_end import put
from runtime.agent.tasks.logs import seconds_left
from runtime.protocol.heartbeat import Follow


def at(begin: int):  # type: ignore[no-untyped-def]
    """Marks of an output whose piece begins at this byte: the byte's number."""
    return lambda size: str(begin + size)


def test_pieces_come_out_as_they_went_in() -> None:
    buffer = LogBuffer(1000)
    buffer.add(b"abc", at(0))
    buffer.add(b"def", at(3))
    chunk = buffer.next(100)
    assert chunk is not None
    assert (chunk.data, chunk.dropped, chunk.gap, chunk.mark) == (b"abcdef", 0, False, "6")
    buffer.sent(chunk)
    assert buffer.next(100) is None
    assert len(buffer) == 0


def test_a_character_waits_for_its_rest_and_is_sent_torn_only_at_the_end() -> None:
    buffer = LogBuffer(1000)
    euro = "\u20ac".encode()
    buffer.add(b"1 " + euro[:2], at(0))
    chunk = buffer.next(100)
    assert chunk is not None
    assert (chunk.data, chunk.mark) == (b"1 ", "2")
    buffer.sent(chunk)
    assert buffer.next(100) is None
    buffer.add(euro[2:], at(4))
    chunk = buffer.next(100)
    assert chunk is not None
    assert (chunk.data, chunk.mark) == (euro, "5")
    buffer.sent(chunk)
    buffer.add(euro[:1], at(5))
    assert buffer.next(100) is None
    last = buffer.next(100, final=True)
    assert last is not None
    assert last.data == euro[:1]


def test_the_oldest_bytes_give_way_and_are_counted() -> None:
    buffer = LogBuffer(10)
    for number in range(10):
        buffer.add(b"%d234" % number, at(5 * number))
    chunk = buffer.next(100)
    assert chunk is not None
    assert (chunk.dropped, len(chunk.data), len(buffer)) == (40 - 10, 10, 10)


def test_what_is_dropped_while_a_chunk_is_under_way_is_counted_once() -> None:
    buffer = LogBuffer(10)
    buffer.add(b"0123456789", at(0))
    chunk = buffer.next(6)
    assert chunk is not None
    buffer.add(b"abcdefgh", at(10))  # the first eight give way; six of them are being sent
    buffer.sent(chunk)
    after = buffer.next(100)
    assert after is not None
    assert (after.dropped, after.data) == (2, b"89abcdefgh")


@pytest.mark.case("FC-033")
def test_a_program_that_prints_two_bytes_at_a_time_costs_no_more_than_one_that_prints_pages() -> None:
    buffer = LogBuffer(1 << 20)
    for number in range(1 << 19):
        buffer.add(b"ab", at(2 * number))
    assert len(buffer) == 1 << 20
    assert len(buffer._pieces) <= 100


def test_a_gap_of_unknown_size_begins_a_chunk_of_its_own() -> None:
    buffer = LogBuffer(100)
    buffer.add(b"before", at(0))
    buffer.skip(7, unknown=True)
    buffer.add(b"after", at(50))
    first = buffer.next(100)
    assert first is not None
    assert (first.data, first.gap) == (b"before", False)
    buffer.sent(first)
    second = buffer.next(100)
    assert second is not None
    assert (second.data, second.gap, second.dropped, second.mark) == (b"after", True, 7, "55")


def test_a_gap_between_bytes_that_seem_to_follow_each_other_is_not_sent_over() -> None:
    buffer = LogBuffer(100)
    buffer.add(b"before", at(0))
    buffer.skip(0, unknown=True)
    buffer.add(b"after", at(6))
    chunks = []
    while (chunk := buffer.next(100)) is not None:
        chunks.append((chunk.data, chunk.dropped, chunk.gap))
        buffer.sent(chunk)
    assert chunks == [(b"before", 0, False), (b"after", 0, True)]


def test_a_gap_outlives_the_bytes_behind_it() -> None:
    buffer = LogBuffer(4)
    buffer.skip(0, unknown=True)
    buffer.add(b"gone", at(0))
    buffer.add(b"here", at(4))
    chunk = buffer.next(100)
    assert chunk is not None
    assert (chunk.data, chunk.gap, chunk.dropped) == (b"here", True, 4)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.binary(min_size=1, max_size=40)),
        st.tuples(st.just("skip"), st.integers(0, 50)),
        st.tuples(st.just("send"), st.integers(1, 60)),
        st.tuples(st.just("late"), st.integers(1, 60)),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=300, deadline=None)
def test_every_byte_is_sent_or_counted_whatever_comes(steps: list[tuple[str, object]]) -> None:
    """Positions of chunks join without a hole, and what is sent is what was printed at that position."""
    buffer, printed, end = LogBuffer(64), bytearray(), 0

    def deliver(chunk) -> None:  # type: ignore[no-untyped-def]
        nonlocal end
        start = end + chunk.dropped
        assert bytes(printed[start : start + len(chunk.data)]) == chunk.data
        end = start + len(chunk.data)
        assert chunk.mark in ("", str(end))
        buffer.sent(chunk)

    for step, value in steps:
        if step == "add":
            assert isinstance(value, bytes)
            buffer.add(value, at(len(printed)))
            printed += value
        elif step == "skip":
            assert isinstance(value, int)
            buffer.skip(value, unknown=False)
            printed += b"?" * value
        else:
            assert isinstance(value, int)
            chunk = buffer.next(value)
            if chunk is not None:
                if step == "late":  # something comes while it is under way
                    buffer.add(b"late", at(len(printed)))
                    printed += b"late"
                deliver(chunk)
        assert len(buffer) <= 64
    while (chunk := buffer.next(64, final=True)) is not None:
        deliver(chunk)
    assert len(buffer) == 0


@given(st.lists(st.sampled_from([b"a", b"\xff", "\u00fc".encode(), "\u20ac".encode(), "\U0001d11e".encode(), b"\xe2",
                                 b"\xf0\x9d", b"\x80", b"\xc3", b"\xf4\x90", b"\xed\xa0"]), max_size=8))  # fmt: skip
def test_a_cut_is_where_a_decoder_has_nothing_left(parts: list[bytes]) -> None:
    raw = b"".join(parts)
    size = whole_characters(raw)
    assert raw[:size].decode("utf-8", "replace") + raw[size:].decode("utf-8", "replace") == raw.decode(
        "utf-8", "replace"
    )
    assert len(raw) - size <= 3


@pytest.mark.parametrize(
    ("rest", "known", "wanted"),
    [
        (LogRest(b"tail", 4, True, "m"), 0, (b"tail", 0, False)),
        (LogRest(b"tail", 104, True, "m"), 0, (b"tail", 100, False)),
        (LogRest(b"tail", 104, True, "m"), 102, (b"il", 0, False)),  # the server has the first 102
        (LogRest(b"tail", 104, True, "m"), 50, (b"tail", 50, False)),
        (LogRest(b"tail", 104, False, "m"), 0, (b"tail", 100, True)),
    ],
)
def test_what_the_server_has_is_not_sent_again(rest: LogRest, known: int, wanted: tuple[bytes, int, bool]) -> None:
    buffer = LogBuffer(100)
    put(buffer, rest, known)
    chunk = buffer.next(100)
    assert chunk is not None
    assert (chunk.data, chunk.dropped, chunk.gap) == wanted


def test_nothing_is_sent_twice_where_nobody_can_tell_what_is_new() -> None:
    buffer = LogBuffer(100)
    put(buffer, LogRest(b"tail", 104, False, "m"), known=102)
    assert buffer.next(100) is None
    buffer.add(b"new", at(0))
    chunk = buffer.next(100)
    assert chunk is not None
    assert (chunk.data, chunk.gap) == (b"new", True)


def test_a_second_is_worth_one_rate_and_no_more() -> None:
    allowance = Allowance(100.0, 100.0, 0.0)
    allowance.left -= 100
    assert allowance.available(0.25) == 25
    assert allowance.available(60.0) == 100


def test_a_follow_lasts_by_the_servers_clock_alone() -> None:
    follow = Follow("t", 1, None, "2026-11-30T10:00:30.000Z")
    assert seconds_left(follow, "2026-11-30T10:00:00.000Z") == 30
    assert seconds_left(Follow("t", 1), "2026-11-30T10:00:00.000Z") == 60
    assert seconds_left(follow, "no time") == 60
