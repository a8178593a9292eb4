"""Ctrl-C during a run: once lets the wave that is under way be finished, twice ends at once.

A signal only sets a mark.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from runtime.fleet.summary import Stop

AT_ONCE = (signal.SIGTERM, signal.SIGHUP)
"""Whoever sends these does not wait for a wave."""


class Interrupts:
    """``asked`` says how the run is to end; None: by itself."""

    def __init__(self) -> None:
        self.asked: Stop | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, *AT_ONCE):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        again = self.asked is not None
        self.asked = Stop.NOW if again or number in AT_ONCE else Stop.BETWEEN_HOSTS
