"""Which signal means what."""

from __future__ import annotations

import signal

import pytest

from runtime.fleet.interrupts import Interrupts
from runtime.fleet.summary import Stop

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize(
    ("sent", "asked"),
    [
        ([], None),
        ([signal.SIGINT], Stop.BETWEEN_HOSTS),
        ([signal.SIGINT, signal.SIGINT], Stop.NOW),
        ([signal.SIGINT, signal.SIGINT, signal.SIGINT], Stop.NOW),
        ([signal.SIGTERM], Stop.NOW),
        ([signal.SIGHUP], Stop.NOW),
        ([signal.SIGINT, signal.SIGTERM], Stop.NOW),
    ],
)
def test_once_is_between_hosts_and_more_is_at_once(sent: list[signal.Signals], asked: Stop | None) -> None:
    before = [signal.getsignal(number) for number in ALL]
    with Interrupts() as interrupts:
        for number in sent:
            signal.raise_signal(number)
        assert interrupts.asked is asked
    assert [signal.getsignal(number) for number in ALL] == before
