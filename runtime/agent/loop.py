"""The one loop behind every periodic part of the agent, and the one back-off.

A loop runs its work, then waits until its next due time (counted from the last due time, so that a slow cycle
does not shift the rhythm), or until somebody wakes or stops it. A pause that the outside world
asked for is kept whatever wakes come. Missed periods are skipped, never made up for.
Work that raises is logged once per change of its message, and put off with back-off, at least for as long as the error
says (``retry_after``, in seconds).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Callable, Optional

from runtime.protocol.heartbeat import LoopState
from runtime.protocol.times import now as wall_now
from runtime.protocol.times import to_wire

log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""A monotonic clock in seconds."""

OVERDUE_INTERVALS = 3


class Backoff:
    """Delays with full jitter: the n-th is uniform between ``least_s`` and ``min(max_s, first_s * 2**n)``.

    The jitter stays full at the cap, so that many clients never come back in step.
    """

    def __init__(
        self, first_s: float, max_s: float, least_s: float = 0.0, *, rng: Optional[random.Random] = None
    ) -> None:
        self.first_s = first_s
        self.max_s = max_s
        self.least_s = least_s
        self._rng = rng or random.Random()  # noqa: S311 (spreads clients; keeps no secret)
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait before the next try; every call makes the window twice as wide, up to ``max_s``."""
        ceiling = min(self.max_s, self.first_s * 2 ** min(self._failures, 30))
        self._failures += 1
        return self._rng.uniform(min(self.least_s, ceiling), ceiling)

    def reset(self) -> None:
        """A try went well: the next delay is drawn from the first window again."""
        self._failures = 0


class Loop:
    """Runs ``work`` every ``interval_s`` seconds in a thread of its own.

    ``jitter`` spreads each interval by that fraction to both sides; the first run comes after ``first_delay_s``
    (None: a random part of one interval). ``deadline_s`` is how long one run of ``work`` may take before the
    loop counts as stuck; calls inside ``work`` must have limits of their own. Without ``backoff`` a failing run
    is simply followed by the next one. ``interval_s`` may be set at any time and holds from the next due time.
    """

    def __init__(
        self,
        name: str,
        interval_s: float,
        work: Callable[[], None],
        *,
        jitter: float = 0.1,
        backoff: Optional[Backoff] = None,
        deadline_s: float = 120.0,
        first_delay_s: Optional[float] = 0.0,
        clock: Clock = time.monotonic,
        rng: Optional[random.Random] = None,
    ) -> None:
        self.name = name
        self.interval_s = interval_s
        self.deadline_s = deadline_s
        self._work = work
        self._jitter = jitter
        self._backoff = backoff
        self._first_delay_s = first_delay_s
        self._clock = clock
        self.stop_event = threading.Event()
        """Set by :meth:`stop`: what ``work`` waits on when it has to wait."""
        self._rng = rng or random.Random()  # noqa: S311
        self._signal = threading.Condition()
        self._woken = False
        self._delay_s: Optional[float] = None
        self._firm = False
        self._thread: Optional[threading.Thread] = None
        self._due = 0.0
        self._run_since: Optional[float] = None
        self._last_ok_at: Optional[str] = None
        self._complaint: Optional[str] = None

    def start(self) -> None:
        """Begin; a loop is started once."""
        first = self._first_delay_s
        self._due = self._clock() + (self._rng.uniform(0, self.interval_s) if first is None else first)
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Run as soon as possible, after a firm pause; wakes that arrive during a run lead to one more run."""
        with self._signal:
            self._woken = True
            self._signal.notify_all()

    def stop(self) -> None:
        """No further run; a run in progress ends by itself (its calls have limits)."""
        self.stop_event.set()
        with self._signal:
            self._signal.notify_all()

    def join(self, timeout: Optional[float] = None) -> bool:
        """Wait for the thread; False when it still runs after ``timeout`` seconds."""
        if self._thread is None or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def delay_next(self, seconds: float, *, firm: bool = False) -> None:
        """To be called from ``work``: the next run is that far away, whatever interval and back-off say. ``firm``: and
        whoever wakes the loop."""
        self._delay_s, self._firm = seconds, firm

    @property
    def stopping(self) -> bool:
        return self.stop_event.is_set()

    def overdue(self, now: Optional[float] = None) -> bool:
        """No progress in three of its intervals: a run that long, or a due time that long ago."""
        moment = self._clock() if now is None else now
        since = self._run_since if self._run_since is not None else self._due
        return self._thread is not None and moment - since > OVERDUE_INTERVALS * self.interval_s

    def healthy(self, now: Optional[float] = None) -> bool:
        """Makes progress: waits for a due time that is not long past, or is in a run within its deadline."""
        if self._thread is None or self.stopping:
            return True
        if not self._thread.is_alive():
            return False
        moment = self._clock() if now is None else now
        since = self._run_since if self._run_since is not None else self._due
        return moment - since <= self.deadline_s

    def state(self) -> LoopState:
        return LoopState(self.name, self._last_ok_at, self.overdue())

    def _run(self) -> None:
        while self._wait():
            self.run_once()

    def run_once(self) -> None:
        """One run of ``work`` and the choice of the next due time; for the thread, and for tests."""
        self._delay_s, self._firm = None, False
        self._run_since = self._clock()
        delay: Optional[float] = None
        try:
            self._work()
        except Exception as error:
            self._complain(error)
            if self._backoff is not None:
                delay = self._backoff.next()
            asked = getattr(error, "retry_after", None)
            if asked:
                self._firm = True
                delay = max(delay or 0.0, asked * self._rng.uniform(1.0, 1.1))
        else:
            self._last_ok_at = to_wire(wall_now())
            if self._complaint is not None:
                log.info("%s: works again", self.name)
                self._complaint = None
            if self._backoff is not None:
                self._backoff.reset()
        finally:
            self._run_since = None
        self._due = self._next_due(self._clock(), self._delay_s if self._delay_s is not None else delay)

    def _next_due(self, now: float, delay: Optional[float]) -> float:
        if delay is not None:
            return now + delay
        step = self.interval_s * self._rng.uniform(1 - self._jitter, 1 + self._jitter)
        due = self._due + step
        # A run that took longer than its interval, or a machine that was asleep: the missed runs are skipped.
        # A wake-up ahead of time moves the rhythm too: the next run is one interval after this one.
        return due if now < due <= now + step else now + step

    @property
    def due(self) -> float:
        """When the next run is due, by the loop's clock."""
        return self._due

    def _wait(self) -> bool:
        with self._signal:
            while not self.stopping:
                remaining = self._due - self._clock()
                if remaining <= 0 or (self._woken and not self._firm):
                    self._woken = False
                    return True
                self._signal.wait(remaining)
        return False

    def _complain(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text == self._complaint:
            log.debug("%s: %s", self.name, text)
            return
        self._complaint = text
        # The traceback goes with what nobody foresaw; errors of the outside world say enough in one line.
        foreseen = isinstance(error, OSError) or getattr(error, "foreseen", False)
        log.warning("%s: %s", self.name, text, exc_info=None if foreseen else error)
