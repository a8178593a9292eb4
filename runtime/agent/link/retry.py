"""Repeating a call whose outcome is unknown, within limits."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Callable, Optional, TypeVar

from runtime.agent.link.errors import Unavailable
from runtime.agent.loop import Backoff, Clock

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """At most ``attempts`` tries (None: no limit) within ``total_s`` seconds (None: no limit); waits grow from
    ``backoff_first_s`` to ``backoff_max_s`` with full jitter."""

    attempts: Optional[int] = 6
    backoff_first_s: float = 1.0
    backoff_max_s: float = 10.0
    total_s: Optional[float] = 60.0


def retrying(
    call: Callable[[], T],
    policy: RetryPolicy,
    stop_event: threading.Event,
    *,
    clock: Clock = time.monotonic,
    wait: Optional[Callable[[float], bool]] = None,
    backoff: Optional[Backoff] = None,
) -> T:
    """The result of ``call``. Unavailable is tried again by ``policy``, and waits at least ``retry_after``.

    Refused and every other error is raised at once. The last Unavailable is raised when the tries or the time
    are used up, or ``stop_event`` is set; its outcome stays unknown.
    """
    pause = wait or stop_event.wait
    delays = backoff or Backoff(policy.backoff_first_s, policy.backoff_max_s)
    start = clock()
    tries = 0
    while True:
        tries += 1
        try:
            return call()
        except Unavailable as error:
            delay = max(delays.next(), error.retry_after or 0.0)
            spent = clock() - start
            used_up = policy.attempts is not None and tries >= policy.attempts
            too_late = policy.total_s is not None and spent + delay > policy.total_s
            if used_up or too_late or pause(delay):
                raise
