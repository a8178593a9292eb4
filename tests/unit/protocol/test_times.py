"""Times on the wire."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.protocol.times import from_epoch, from_wire, now, to_wire

UTC = timezone.utc


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T12:00:00z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T12:00:00.5Z", datetime(2026, 3, 1, 12, 0, 0, 500000, tzinfo=UTC)),
        ("2026-03-01T12:00:00.123456789Z", datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)),
        ("2026-03-01T14:00:00.123456789+02:00", datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)),
        ("2026-03-01T12:00:00.1-00:30", datetime(2026, 3, 1, 12, 30, 0, 100000, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_what_docker_and_others_write_is_read(text: str, moment: datetime) -> None:
    assert from_wire(text) == moment


@pytest.mark.parametrize("text", ["", "now", "2026-03-01T12:00:00", "2026-03-01", "2026-13-01T00:00:00Z", "1772366400"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError):
        from_wire(text)


def test_moments_are_written_in_utc_with_z() -> None:
    moment = datetime(2026, 3, 1, 14, 0, 0, 123999, tzinfo=timezone(timedelta(hours=2)))
    assert to_wire(moment) == "2026-03-01T12:00:00.123Z"
    assert now().utcoffset() == timedelta(0)


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1), timezones=st.just(UTC)))
def test_a_moment_survives_to_the_millisecond(moment: datetime) -> None:
    assert abs(from_wire(to_wire(moment)) - moment) < timedelta(milliseconds=1)


@given(st.lists(st.datetimes(min_value=datetime(1000, 1, 1), timezones=st.just(UTC)), min_size=2, max_size=5))
def test_texts_sort_as_moments_do(moments: list[datetime]) -> None:
    """The database compares them as text."""
    texts = [to_wire(moment) for moment in moments]
    assert sorted(texts) == [to_wire(moment) for moment in sorted(moments)]


def test_a_reading_of_the_wall_clock_is_a_moment_in_utc() -> None:
    assert to_wire(from_epoch(1772366400.25)) == "2026-03-01T12:00:00.250Z"
