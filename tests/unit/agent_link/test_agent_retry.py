"""Repeating calls whose outcome is unknown: tries, waits and the total, by a clock of the test's own."""

from __future__ import annotations

import random
import threading

import pytest

from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.link.retry import RetryPolicy, retrying
from runtime.agent.loop import Backoff
from runtime.protocol.problems import ProblemDocument


class World:
    """A clock that only waits move on."""

    def __init__(self, *steps) -> None:
        self.steps = list(steps)
        self.calls = 0
        self.waits: list[float] = []
        self.now = 0.0
        self.stop_after: int | None = None

    def call(self):
        self.calls += 1
        step = self.steps.pop(0) if self.steps else Unavailable("no answer")
        if isinstance(step, Exception):
            raise step
        return step

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return self.stop_after is not None and len(self.waits) >= self.stop_after

    def run(self, policy: RetryPolicy):
        backoff = Backoff(policy.backoff_first_s, policy.backoff_max_s, rng=random.Random(1))
        return retrying(self.call, policy, threading.Event(), clock=lambda: self.now, wait=self.wait, backoff=backoff)


def test_success_needs_no_wait() -> None:
    world = World("ok")
    assert world.run(RetryPolicy()) == "ok" and world.waits == []


def test_unavailable_is_repeated_and_the_result_returned() -> None:
    world = World(Unavailable("a"), Unavailable("b"), "ok")
    assert world.run(RetryPolicy()) == "ok" and world.calls == 3


def test_refused_is_final() -> None:
    world = World(Refused(ProblemDocument(409, "state_conflict", "")))
    with pytest.raises(Refused):
        world.run(RetryPolicy())
    assert world.calls == 1


def test_tries_are_limited() -> None:
    world = World()
    with pytest.raises(Unavailable):
        world.run(RetryPolicy(attempts=6, total_s=None))
    assert world.calls == 6 and len(world.waits) == 5
    assert all(wait <= limit for wait, limit in zip(world.waits, (1, 2, 4, 8, 10)))


def test_the_total_is_never_passed() -> None:
    world = World()
    with pytest.raises(Unavailable):
        world.run(RetryPolicy(attempts=None, backoff_first_s=10, backoff_max_s=10, total_s=60))
    assert world.now <= 60 and world.calls > 6


def test_without_limits_it_goes_on() -> None:
    world = World(*[Unavailable("x")] * 200, "ok")
    assert world.run(RetryPolicy(attempts=None, total_s=None)) == "ok"


def test_retry_after_is_the_least_wait_and_counts_against_the_total() -> None:
    world = World(Unavailable("busy", retry_after=20), "ok")
    assert world.run(RetryPolicy()) == "ok" and world.waits == [20]
    late = World(Unavailable("busy", retry_after=90))
    with pytest.raises(Unavailable):
        late.run(RetryPolicy())
    assert late.waits == []


def test_a_stop_ends_the_waiting() -> None:
    world = World()
    world.stop_after = 2
    with pytest.raises(Unavailable):
        world.run(RetryPolicy(attempts=None, total_s=None))
    assert world.calls == 2
