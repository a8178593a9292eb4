"""After a 401 nothing is asked of the server but, every minute, one heartbeat.

Only people can change a refused key, and many calls go on beside the heartbeat: pulls, logs, reports, the last beat of
an agent that leaves. All clients of an agent share one :class:`KeyRefusal`, so none of them carries the key again
before it is time.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Optional

from runtime.agent.link.errors import Refused
from runtime.agent.loop import Clock

KEY_REFUSED_S = 60.0


class KeyRefusal:
    """Safe to use from several threads. ``clock`` must be the clock of the loops that wait for it."""

    def __init__(
        self,
        pause_s: float = KEY_REFUSED_S,
        *,
        clock: Clock = time.monotonic,
        rng: Optional[random.Random] = None,
    ) -> None:
        self.pause_s = pause_s
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 (spreads agents; keeps no secret)
        self._lock = threading.Lock()
        self._refused: Optional[Refused] = None
        self._since = 0.0
        self._until = 0.0

    def check(self, *, asks_again: bool = False) -> None:
        """Raises the refusal, as the server said it, when this call is not to be sent now. ``asks_again``: this call is
        the one that finds out whether the key is accepted again."""
        with self._lock:
            if self._refused is None:
                return
            left = self._until - self._clock()
            if asks_again and left <= 0:
                return
            raise Refused(self._refused.problem, again_s=max(0.0, left))

    def refused(self, refusal: Refused, sent: float) -> Refused:
        """A call that was sent then was answered with 401; the same with the seconds until the key is tried again. What
        was under way beside another such call adds nothing to its pause."""
        with self._lock:
            if self._refused is None or sent >= self._until:
                self._since = self._clock()
                self._until = self._since + self.pause_s * self._rng.uniform(1.0, 1.1)
            self._refused = refusal
            return Refused(refusal.problem, again_s=max(0.0, self._until - self._clock()))

    def answered(self, sent: float) -> None:
        """A call that was sent then got another answer than 401. One that was under way when the key was refused says
        nothing of what is true since."""
        with self._lock:
            if self._refused is not None and sent >= self._since:
                self._refused = None
