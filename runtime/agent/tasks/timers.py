"""Everything that is due later, in one thread: time limits, grace periods, probes, tries again."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Hashable
from typing import Callable

log = logging.getLogger(__name__)

SPARE = 64
"""How many entries that count no more may wait beside as many that do, before they are swept out."""


class Timers:
    """One timer per name: setting it again moves it. Actions run in the timers' thread and must be quick."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, Hashable]] = []
        self._current: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        self._numbers = itertools.count()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="timers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def at(self, name: Hashable, moment: float, action: Callable[[], None]) -> None:
        """Run ``action`` at that monotonic time."""
        with self._condition:
            number = next(self._numbers)
            self._current[name] = (number, action)
            heapq.heappush(self._heap, (moment, number, name))
            if len(self._heap) > 2 * len(self._current) + SPARE:
                self._sweep()
            self._condition.notify_all()

    def after(self, name: Hashable, seconds: float, action: Callable[[], None]) -> None:
        self.at(name, self._clock() + seconds, action)

    def cancel(self, name: Hashable) -> None:
        with self._condition:
            self._current.pop(name, None)

    @property
    def waiting(self) -> int:
        """How many entries memory holds, those that were moved or cancelled included."""
        with self._condition:
            return len(self._heap)

    def _sweep(self) -> None:
        """Drop what was moved or cancelled: a limit of weeks, armed anew at every look, would pile up until then."""
        self._heap = [
            entry for entry in self._heap if (found := self._current.get(entry[2])) is not None and found[0] == entry[1]
        ]
        heapq.heapify(self._heap)

    def _run(self) -> None:
        while True:
            with self._condition:
                action = self._next()
            if action is None:
                return
            try:
                action()
            except Exception:
                log.exception("a timer's action failed")
            del action  # what it was about is not held until the next one is due

    def _next(self) -> Callable[[], None] | None:
        while not self._stopping:
            if not self._heap:
                self._condition.wait()
                continue
            moment, number, name = self._heap[0]
            current = self._current.get(name)
            if current is None or current[0] != number:
                heapq.heappop(self._heap)
                continue
            remaining = moment - self._clock()
            if remaining > 0:
                self._condition.wait(remaining)
                continue
            heapq.heappop(self._heap)
            del self._current[name]
            return current[1]
        return None
