"""Background work: never ends by itself, says a fault once, comes at once when woken."""

from __future__ import annotations

import logging
import queue
import threading

import pytest

from runtime.server.services.ticker import Ticker


def test_it_runs_when_woken_and_ends_when_stopped() -> None:
    calls: queue.Queue[float] = queue.Queue()
    ticker = Ticker("test", 3600, calls.put)
    ticker.start()
    assert calls.get(timeout=10) < 60, "the first call comes at once"
    assert calls.empty()
    ticker.wake()
    assert calls.get(timeout=10) == 0
    ticker.stop()
    ticker.join(10)
    assert "test" not in [thread.name for thread in threading.enumerate()]


def test_a_fault_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    faults = iter([OSError("one"), OSError("one"), OSError("two"), None, None])
    done: queue.Queue[int] = queue.Queue()
    count = 0

    def work(_lag_s: float) -> None:
        nonlocal count
        count += 1
        done.put(count)
        fault = next(faults, None)
        if fault is not None:
            raise fault

    with caplog.at_level(logging.INFO):
        ticker = Ticker("test", 0.01, work)
        ticker.start()
        for _ in range(6):
            done.get(timeout=10)
        ticker.stop()
        ticker.join(10)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "INFO"]
