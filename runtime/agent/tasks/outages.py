"""When the engine was away, so that an end inside such a time is not taken for the program's own."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Callable, Optional

from runtime.protocol.times import from_wire

MARGIN_S = 1.0
"""The engine ends its containers a moment before its socket falls silent."""

KEEP = 50


class Outages:
    """Spans of wall-clock time, each from the last sign of life (or the moment it was lost, where that was seen)
    to the next."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._spans: deque[tuple[float, float]] = deque(maxlen=KEEP)
        self._last_life: Optional[float] = None
        self._since: Optional[float] = None

    def alive(self) -> None:
        """The engine answered."""
        now = self._wall()
        with self._lock:
            if self._since is not None:
                self._spans.append((self._since, now))
            self._since, self._last_life = None, now

    def gone(self, noticed_at_once: bool = False) -> None:
        """The engine did not answer, or (``noticed_at_once``) its stream broke just now."""
        now = self._wall()
        with self._lock:
            if self._since is None:
                begin = now if noticed_at_once or self._last_life is None else self._last_life
                self._since = begin - MARGIN_S

    def covers(self, moment: Optional[str]) -> bool:
        """Whether this RFC 3339 time lies in an outage."""
        if moment is None:
            return False
        at = from_wire(moment).timestamp()
        with self._lock:
            spans = [*self._spans, *([(self._since, at)] if self._since is not None else [])]
        return any(begin <= at <= end for begin, end in spans)
