"""When the engine was away, so that an end inside such a time is not taken for the program's own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Callable, Optional

from runtime.protocol.times import from_wire

MARGIN_S = 1.0
"""The engine ends its containers a moment before its socket falls silent."""

KEEP = 50


class Outages:
    """Spans of wall-clock time; each begins at the last sign of life and ends at the next."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._spans: deque[tuple[float, float]] = deque(maxlen=KEEP)
        self._last_life: Optional[float] = None
        self._away = False

    @property
    def away(self) -> bool:
        return self._away

    def alive(self) -> None:
        """The engine answered."""
        now = self._wall()
        with self._lock:
            if self._away and self._last_life is not None:
                self._spans.append((self._last_life - MARGIN_S, now))
            self._away, self._last_life = False, now

    def gone(self) -> None:
        """The engine did not answer, or its stream broke."""
        with self._lock:
            self._away = True
            if self._last_life is None:
                self._last_life = self._wall()

    def covers(self, moment: Optional[str]) -> bool:
        """Whether this RFC 3339 time lies in an outage."""
        if moment is None:
            return False
        at = from_wire(moment).timestamp()
        return any(begin <= at <= end for begin, end in self._all())

    def _all(self) -> Iterator[tuple[float, float]]:
        with self._lock:
            spans = list(self._spans)
            if self._away and self._last_life is not None:
                spans.append((self._last_life - MARGIN_S, float("inf")))
        return iter(spans)
