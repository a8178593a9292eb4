"""What cards measured over the last day, in steps of a minute and in bounded space.

It lives in memory: a beat costs nothing for it, since once a minute the newest beat of each node is looked at. A
minute in which a card was not heard has no point, and a value that was not measured has none either. A restart of the
server begins anew; of several processes each keeps its own, made of the beats that came to it.
"""

from __future__ import annotations

import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Optional

from runtime.protocol import times
from runtime.protocol.hardware import GpuStats
from runtime.protocol.nodes import CardHistory, CardPoint, NodeState
from runtime.server.services.presence import Presence

STEP_S = 60
DAY = 24 * 60
"""Minutes that are kept."""
HOUR = 60
CARDS_CAP = 100_000
"""Cards and slices at most, so that no node fills the memory with invented ones."""
EVERY_S = 5.0
"""How often it is looked whether a minute is over."""

_POINT = struct.Struct("<Iffff")
"""The minute since 1970, then the four values; NaN is what was not measured."""


@dataclass
class Kept:
    """One card. ``hours``: packed points of each hour that is over, at most a day of them; ``open``: the hour now."""

    last: int = -1
    hours: deque[tuple[int, bytes]] = field(default_factory=deque)
    open: bytearray = field(default_factory=bytearray)

    def add(self, minute: int, stats: GpuStats) -> None:
        """A point of a later minute than the one before; of the same or an earlier one nothing is taken. What a clock
        stored that was an hour ahead or more is dropped."""
        if minute < self.last - HOUR:
            self.hours.clear()
            self.open.clear()
        elif minute <= self.last:
            return
        if self.open and minute // HOUR != self.last // HOUR:
            self.hours.append((self.last, zlib.compress(bytes(self.open), 6)))
            self.open = bytearray()
        while self.hours and self.hours[0][0] <= minute - DAY:
            self.hours.popleft()
        values = (stats.temperature_c, stats.utilization_pct, stats.memory_used_mib, stats.power_w)
        self.open += _POINT.pack(minute, *(nan if value is None else float(value) for value in values))
        self.last = minute

    def points(self, now: int) -> list[CardPoint]:
        """Those of the last day, oldest first."""
        packed = b"".join([*(zlib.decompress(hour) for _, hour in self.hours), bytes(self.open)])
        return [_point(*row) for row in _POINT.iter_unpack(packed) if now - DAY < row[0] <= now]


class History:
    """Thread-safe. ``clock`` is the wall clock, in seconds."""

    def __init__(self, presence: Presence, clock: Callable[[], float] = time.time) -> None:
        self._presence = presence
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._minute = -1

    def tick(self, _lag_s: float = 0.0) -> None:
        """Take a sample when a new minute has begun."""
        minute = self._now()
        if minute == self._minute:
            return
        self._minute = minute
        for node_id in self._presence.node_ids():
            view = self._presence.view(node_id)
            if view is not None and view.state is NodeState.ONLINE:
                self.add(minute, self._presence.gpu_stats(node_id))
        self._forget(minute)

    def add(self, minute: int, measured: Iterable[GpuStats]) -> None:
        """One node's cards at ``minute`` (since 1970). What measured nothing leaves nothing."""
        with self._lock:
            for stats in measured:
                if stats.temperature_c is stats.utilization_pct is stats.memory_used_mib is stats.power_w is None:
                    continue
                kept = self._kept.get(stats.uuid)
                if kept is None:
                    if len(self._kept) >= CARDS_CAP:
                        continue
                    kept = self._kept[stats.uuid] = Kept()
                kept.add(minute, stats)

    def read(self, uuid: str) -> CardHistory:
        """The last day of a card; no points when nothing is known of it."""
        with self._lock:
            kept = self._kept.get(uuid)
            points = kept.points(self._now()) if kept is not None else []
        return CardHistory(uuid, STEP_S, points)

    def knows(self, uuid: str) -> bool:
        with self._lock:
            return uuid in self._kept

    def _now(self) -> int:
        return int(self._clock() // STEP_S)

    def _forget(self, minute: int) -> None:
        """Cards that were not heard for a day."""
        with self._lock:
            for uuid in [uuid for uuid, kept in self._kept.items() if kept.last <= minute - DAY]:
                del self._kept[uuid]


def _point(minute: int, temperature: float, utilization: float, memory: float, power: float) -> CardPoint:
    used = _value(memory)
    return CardPoint(
        time=times.to_wire(times.from_epoch(minute * STEP_S)),
        temperature_c=_value(temperature),
        utilization_pct=_value(utilization),
        memory_used_mib=int(used) if used is not None else None,
        power_w=_value(power),
    )


def _value(stored: float) -> Optional[float]:
    return None if isnan(stored) else round(stored, 2)
