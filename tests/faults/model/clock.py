"""One clock for a whole world, numbers in place of chance, and no thread of the product: a run can be repeated."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import pkgutil
import random
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone, tzinfo
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import runtime.agent
import runtime.server
from tests.faults.model.workers import Silent, SteppedObserver, SteppedTicker

EPOCH = 1_800_000_000.0

for _room in (runtime.agent, runtime.server):
    for _found in pkgutil.walk_packages(_room.__path__, f"{_room.__name__}."):
        if ".migrations" not in _found.name:
            importlib.import_module(_found.name)  # whoever looks at the time is here before another one is installed


class Clock:
    """Seconds. ``monotonic`` and ``time`` are the control plane's; nodes have clocks of their own that follow it."""

    def __init__(self) -> None:
        self.now = 100_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now


class _Time:
    """The module ``time``, with the world's clocks."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic, self.time = clock.monotonic, clock.time

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextlib.contextmanager
def installed(clock: Clock) -> Iterator[None]:
    """Inside, every module of the product reads ``clock``, starts no loop by itself, and draws the same numbers."""

    class ModelDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.fromtimestamp(clock.time(), tz or timezone.utc)

    numbers = itertools.count(1)
    chance = SimpleNamespace(Random=lambda *seed: random.Random(7), randint=lambda least, most: least)
    names = SimpleNamespace(uuid4=lambda: f"00000000-0000-4000-8000-{next(numbers):012d}")

    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("runtime.") and getattr(module, "time", None) is time:
                stack.enter_context(mock.patch.object(module, "time", _Time(clock)))
        for target, value in {
            "runtime.protocol.times.datetime": ModelDatetime,
            "runtime.agent.loop.random": chance,
            "runtime.agent.link.heartbeat.random": chance,
            "runtime.server.app.random": chance,
            "runtime.server.services.tasks.create.uuid": names,
            "runtime.agent.tasks.claim.secrets": SimpleNamespace(
                token_hex=lambda size: f"{next(numbers):0{2 * size}x}"
            ),
            "runtime.agent.loop.Loop.start": lambda self: None,
            "runtime.agent.tasks.executor.EventThread": Silent,
            "runtime.server.services.background.Ticker": SteppedTicker,
            "runtime.server.services.background.Observer": partial(SteppedObserver, clock=clock.monotonic),
        }.items():
            stack.enter_context(mock.patch(target, value))
        yield
