"""The product's threads, without threads: what they would do waits here until the world lets one piece happen."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from runtime.agent.tasks.timers import Timers
from runtime.server.services.observed import Observer
from runtime.server.services.ticker import Ticker

Work = Callable[[], None]


class Workers:
    """What all pools of one agent still have to do, by pool and key; work of one key runs in order."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], deque[Work]] = {}

    def pool(self, name: str, size: int) -> SteppedPool:
        return SteppedPool(self, name)

    def put(self, pool: str, key: str, work: Work) -> None:
        self._waiting.setdefault((pool, key), deque()).append(work)

    def ready(self) -> list[tuple[str, str]]:
        """In an order that does not depend on who came first."""
        return sorted(self._waiting)

    def run(self, place: tuple[str, str]) -> None:
        queue = self._waiting[place]
        work = queue.popleft()
        if not queue:
            del self._waiting[place]
        work()


class SteppedPool:
    """In place of :class:`runtime.agent.tasks.pool.Pool`."""

    def __init__(self, workers: Workers, name: str) -> None:
        self._workers, self._name = workers, name

    def submit(self, key: str, work: Work) -> None:
        self._workers.put(self._name, key, work)

    def stop(self, deadline_s: float) -> bool:
        return True


class SteppedTimers(Timers):
    """Fires what is due when it is told to."""

    def start(self) -> None:
        pass

    def fire(self) -> None:
        while self._heap and self._heap[0][0] <= self._clock():
            _, number, name = heapq.heappop(self._heap)
            current = self._current.get(name)
            if current is not None and current[0] == number:
                del self._current[name]
                current[1]()


class SteppedTicker(Ticker):
    """Runs when it is told to."""

    def start(self) -> None:
        pass

    def join(self, timeout_s: float) -> None:
        pass

    def run(self) -> None:
        self._work(0.0)


class Silent:
    """In place of a thread that reads an engine's events: the world tells of them itself."""

    def __init__(self, *_: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class SteppedObserver(Observer):
    """Writes what beats said when it is told to."""

    def start(self) -> None:
        self._stopping.clear()
        self._refresh.set()

    def stop(self) -> None:
        self._stopping.set()
        self.run()

    def run(self) -> None:
        self._changes.put(None)
        self._work()
