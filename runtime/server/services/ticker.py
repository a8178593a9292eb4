"""Work of the control plane that comes round: at an interval, or at once when something happened."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from runtime.protocol.problems import Problem

log = logging.getLogger(__name__)


class Ticker:
    """Runs ``work(lag_s)`` every ``interval_s`` in a thread of its own, sooner after :meth:`wake`.

    ``lag_s`` is how late the call comes. What it raises is logged once per change and tried again at the next
    interval: background work never ends by itself.
    """

    def __init__(self, name: str, interval_s: float, work: Callable[[float], None]) -> None:
        self._name = name
        self._interval_s = interval_s
        self._work = work
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._failing: str | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Run soon, whatever the interval says."""
        self._wake.set()

    def stop(self) -> None:
        """Finish the call under way and end the thread."""
        self._stop.set()
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            woken = self._wake.wait(max(0.0, due - time.monotonic()))
            if self._stop.is_set():
                return
            self._wake.clear()
            now = time.monotonic()
            lag = max(0.0, now - due)
            if not woken or now >= due:
                due = max(due + self._interval_s, now)
            try:
                self._work(lag)
            except Problem as problem:
                if problem.detail != self._failing:
                    log.warning("%s cannot go on (%s); it is tried again", self._name, problem.detail)
                self._failing = problem.detail
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                if text != self._failing:
                    log.exception("%s failed; it is tried again every %g s", self._name, self._interval_s)
                self._failing = text
            else:
                if self._failing is not None:
                    log.info("%s works again", self._name)
                self._failing = None
