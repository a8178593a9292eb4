"""Whether an agent's beats keep their pace: beside a bare caller of the same period, which has nothing else to do.

A machine that is busy makes both late. What the bare caller is spared is the agent's own.
"""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Iterator

from tests.integration.agent_link.stub_server import Request, StubServer, wait_until

HEARTBEAT = "/api/v1/agent/heartbeat"
BARE = "/bare"
BEAT_S = 1.0
LATE_S = 1.0
"""No beat comes later than this after its time."""
SETTLED = 3
"""The first calls say nothing of the pace: beats come as soon as there is something to tell."""
GAPS = 5
"""Fewer say nothing of a pace; a quick test waits until there are as many."""


class Pace:
    """``server`` hears both; the agent's interval is :data:`BEAT_S`."""

    def __init__(self, server: StubServer) -> None:
        self._server = server

    def holds(self) -> bool:
        wait_until(lambda: all(len(self._server.of(path)) > SETTLED + GAPS for path in (HEARTBEAT, BARE)), 60)
        return self._longest(HEARTBEAT) - self._longest(BARE) < LATE_S

    def said(self) -> str:
        return f"longest gap {self._longest(HEARTBEAT):.2f} s, of a bare caller {self._longest(BARE):.2f} s"

    def _longest(self, path: str) -> float:
        calls: list[Request] = self._server.of(path)[SETTLED:]
        return max(later.at - earlier.at for earlier, later in zip(calls, calls[1:]))


@contextlib.contextmanager
def pace(server: StubServer) -> Iterator[Pace]:
    """The bare caller calls until the end."""
    over = threading.Event()

    def call() -> None:
        while not over.wait(BEAT_S):
            with urllib.request.urlopen(server.url + BARE, timeout=60) as answer:
                answer.read()

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    try:
        yield Pace(server)
    finally:
        over.set()
        caller.join(60)
