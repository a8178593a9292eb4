"""Workers that take steps, one at a time per task.

Work is submitted under a key; work of one key runs in order and never side by side. Threads come on demand up
to the pool's size and go when there has been nothing to do for a while: a running task holds none.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Callable

log = logging.getLogger(__name__)

IDLE_S = 30.0
Work = Callable[[], None]


class Pool:
    """``size`` bounds the steps in progress. What is submitted twice for a key while it waits is still two works."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._condition = threading.Condition()
        self._ready: deque[str] = deque()
        self._work: dict[str, deque[Work]] = {}
        self._busy: set[str] = set()
        self._threads = 0
        self._idle = 0
        self._made = 0
        self._stopping = False

    def submit(self, key: str, work: Work) -> None:
        """Queue one piece of work; ignored after ``stop``."""
        with self._condition:
            if self._stopping:
                return
            queue = self._work.setdefault(key, deque())
            queue.append(work)
            if len(queue) == 1 and key not in self._busy:
                self._ready.append(key)
            if len(self._ready) > self._idle and self._threads < self._size:
                self._threads += 1
                self._made += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._made}", daemon=True).start()
            else:
                self._condition.notify()

    def stop(self, deadline_s: float) -> bool:
        """Take nothing new and drop what waits; whether all work in progress ended in time."""
        with self._condition:
            self._stopping = True
            self._ready.clear()
            self._work.clear()
            self._condition.notify_all()
            return self._condition.wait_for(lambda: not self._busy, deadline_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._idle += 1
                self._condition.wait_for(lambda: bool(self._ready) or self._stopping, IDLE_S)
                self._idle -= 1
                if not self._ready:
                    self._threads -= 1
                    return
                key = self._ready.popleft()
                work = self._work[key].popleft()
                self._busy.add(key)
            try:
                work()
            except Exception:
                log.exception("%s: a step of %s failed in a way that nobody foresaw", self._name, key)
            finally:
                del work  # what it was about is not held while this thread waits
                with self._condition:
                    self._busy.discard(key)
                    queue = self._work.get(key)
                    if queue:
                        self._ready.append(key)
                    else:
                        self._work.pop(key, None)
                    self._condition.notify_all()
