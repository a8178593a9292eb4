"""When an engine was seen at work and when it was silent, by a clock that nobody sets.

An engine that goes down takes no new connection while it ends its containers. Each answer over a new one is thus a
proof that it was not going down then, and a silence begins with the last proof before it.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import deque
from typing import Callable, Optional

from runtime.protocol.times import from_wire

PROOFS = 1024
SPANS = 50
STEP_S = 0.5
"""The wall clock is set where it moves by more than that against the monotonic one between two looks."""

CLOCK_STEPS = 16


class WallClock:
    """How the wall clock stood to the monotonic one, as far as it was looked at. Not safe to use from threads."""

    def __init__(self) -> None:
        self._stood: deque[tuple[float, float, float]] = deque(maxlen=CLOCK_STEPS)  # from, to, wall minus monotonic

    def note(self, mono: float, wall: float) -> None:
        offset = wall - mono
        if self._stood and abs(offset - self._stood[-1][2]) <= STEP_S:
            began, _, _ = self._stood[-1]
            self._stood[-1] = (began, mono, offset)
            return
        # Between two looks nobody knows how it stood: either way is possible there.
        seen_before = self._stood[-1][1] if self._stood else float("-inf")
        if self._stood:
            began, _, before = self._stood[-1]
            self._stood[-1] = (began, mono, before)
        self._stood.append((seen_before, mono, offset))

    def moments(self, wall: float) -> tuple[float, ...]:
        """The monotonic times at which the wall clock may have shown this; none when it never did."""
        found = []
        for place, (began, ended, offset) in enumerate(self._stood, 1):
            at = wall - offset
            if began <= at <= (float("inf") if place == len(self._stood) else ended):
                found.append(at)
        return tuple(found)


class Outages:
    """One engine's proofs of life and silences. Safe to use from threads; times in seconds of the monotonic clock."""

    def __init__(self, wall: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._clock = clock
        self._lock = threading.Lock()
        self._clocks = WallClock()
        self._proofs: deque[float] = deque(maxlen=PROOFS)
        self._first: Optional[float] = None
        self._spans: deque[tuple[float, float]] = deque(maxlen=SPANS)
        self._since: Optional[float] = None

    def alive(self, asked: Optional[float] = None) -> None:
        """It answered over a connection that was made for that, at ``asked``: it may have begun to go down since."""
        now = self._clock()
        proof = now if asked is None else asked
        with self._lock:
            self._clocks.note(now, self._wall())
            if self._since is not None:
                self._spans.append((self._since, now))
                self._since = None
            if self._first is None:
                self._first = proof
            self._proofs.append(proof)

    def gone(self) -> None:
        """It did not answer, or a stream of it broke."""
        now = self._clock()
        with self._lock:
            self._clocks.note(now, self._wall())
            if self._since is None:
                self._since = self._proofs[-1] if self._proofs else float("-inf")

    def moments(self, text: Optional[str]) -> tuple[float, ...]:
        """When that was which the engine dates so (RFC 3339, by the wall clock); several when the clock was set."""
        if text is None:
            return ()
        with self._lock:
            self._clocks.note(self._clock(), self._wall())
            return self._clocks.moments(from_wire(text).timestamp())

    def silent(self, moment: float) -> bool:
        """Whether it may have been going down or away then."""
        with self._lock:
            spans = [*self._spans, *([(self._since, float("inf"))] if self._since is not None else [])]
        return any(began <= moment <= ended for began, ended in spans)

    def watched(self, moment: float) -> bool:
        """Whether this agent had seen it at work before that."""
        with self._lock:
            return self._first is not None and self._first <= moment

    def last_proof_before(self, moment: float) -> Optional[float]:
        """The last proof of life before that; None when none is known."""
        with self._lock:
            proofs = list(self._proofs)
        place = bisect.bisect_left(proofs, moment)
        return proofs[place - 1] if place else None
