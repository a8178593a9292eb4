"""Which containers ended without a signal from their engine, and which were killed for memory, as it told of it while
it happened.

An engine that stops tells of each signal that it sends before it tells of the end that follows. Such news survive no
restart of the engine, so they are kept here. Only a stream that has been open for longer than an engine takes to stop
proves that there was no signal.

The news of a kill for memory and that of the end come from two places (the kernel's count of the group, and the
process that waits for its child), so either may be first; an engine that hears of the end first may never set its flag.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any, Callable

KEEP = 4096
STOPPING_S = 60.0
NEWS_S = 1.0
"""So long after an end the other news of it may still come."""


class Witness:
    """Fed by one stream of events; asked from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Condition()
        self._since = float("inf")
        self._started: OrderedDict[str, None] = OrderedDict()
        self._signalled: OrderedDict[str, None] = OrderedDict()
        self._ended: OrderedDict[str, bool] = OrderedDict()
        self._ended_at: OrderedDict[str, float] = OrderedDict()
        self._starved: OrderedDict[str, None] = OrderedDict()

    def opened(self) -> None:
        """A stream begins; what came before it was not seen."""
        with self._lock:
            self._since = self._clock()
            self._started.clear()
            self._signalled.clear()

    def heard(self, what: str, container_id: str) -> None:
        """One event of a container: start, kill, oom, die, destroy; others tell nothing here."""
        with self._lock:
            if what == "start":
                self._started[container_id] = None
                self._signalled.pop(container_id, None)
                forgotten: tuple[OrderedDict[str, Any], ...] = (self._ended, self._ended_at, self._starved)
                for one in forgotten:
                    one.pop(container_id, None)
            elif what == "oom":
                self._starved[container_id] = None
                self._lock.notify_all()
            elif what == "kill":
                self._signalled[container_id] = None
            elif what == "die":
                seen_long = container_id in self._started or self._clock() - self._since >= STOPPING_S
                self._ended[container_id] = seen_long and container_id not in self._signalled
                self._ended_at[container_id] = self._clock()
            elif what == "destroy":
                for kept in self._all():
                    kept.pop(container_id, None)
            for kept in self._all():
                while len(kept) > KEEP:
                    kept.popitem(last=False)

    def ended_by_itself(self, container_id: str) -> bool:
        """Whether its end is known to be no work of the engine. False: not known."""
        with self._lock:
            return self._ended.get(container_id, False)

    def killed_for_memory(self, container_id: str) -> bool:
        """Whether the engine told so of its last run. Just after an end that nobody's signal explains, this waits until
        the news can come no more. False: not known."""
        with self._lock:
            ended_at = self._ended_at.get(container_id)
            if ended_at is not None and container_id not in self._signalled:
                left = ended_at + NEWS_S - self._clock()
                self._lock.wait_for(lambda: container_id in self._starved, max(0.0, left))
            return container_id in self._starved

    def _all(self) -> tuple[OrderedDict[str, Any], ...]:
        return self._started, self._signalled, self._ended, self._ended_at, self._starved
