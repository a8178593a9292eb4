"""What heartbeat and tasks are told of the cards while some of them owe a probe."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Callable

from runtime.agent.card_probe.owed import NOT_YET, Owed, advance, bad_cards, told, without
from runtime.agent.hardware.inventory import GpuSnapshot
from runtime.protocol.hardware import Gpu
from runtime.protocol.times import now, to_wire

REMEMBERED = 64
"""The last probe containers: a look may be older than the end of what it shows."""


class Gate:
    """Stands before ``look`` (the inventory's snapshot); :meth:`snapshot` never blocks. Asked by any thread.

    ``on_change`` is called, outside the lock, when other cards owe a probe or are bad than before.
    """

    def __init__(self, look: Callable[[], GpuSnapshot], owed: Mapping[str, Owed]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._owed: Mapping[str, Owed] = owed
        self._said: dict[str, str] = {}
        self._bad_since_begin: set[str] = set()
        self._containers: deque[str] = deque(maxlen=REMEMBERED)
        self._known: list[Gpu] = []
        self._bad: dict[str, str] = {}
        self._last: GpuSnapshot = GpuSnapshot()
        self.on_change: Callable[[], None] = lambda: None

    def snapshot(self) -> GpuSnapshot:
        """The cards as last seen; those that owe a probe are among the failures."""
        with self._lock:
            before = (self._owed, self._bad)
            seen = self._take()
            shown = without(told(seen, self._owed, self._said), self._containers)
            changed = self._owed is not before[0] or self._bad != before[1]
        if changed:
            self.on_change()
        return shown

    def debts(self) -> tuple[GpuSnapshot, Mapping[str, Owed]]:
        """The newest look as the tools have it, and the cards that owe a probe."""
        with self._lock:
            return self._take(), self._owed

    def say(self, uuid: str, text: str = NOT_YET) -> None:
        """How far the card's probe is."""
        with self._lock:
            self._said[uuid] = text

    def begin(self, uuids: Iterable[str]) -> None:
        """A probe of these, a card and its slices, begins now."""
        with self._lock:
            self._bad_since_begin.difference_update(uuids)

    def own(self, container_id: str) -> None:
        """This container is a probe's: what it holds is held by no stranger."""
        with self._lock:
            self._containers.append(container_id)

    def paid(self, uuids: Collection[str]) -> bool:
        """The probe of these has ended well. False: one of them was bad meanwhile, and owes another."""
        with self._lock:
            self._take()
            if not self._bad_since_begin.isdisjoint(uuids):
                return False
            self._said = {name: text for name, text in self._said.items() if name not in uuids}
            self._owed = {name: debt for name, debt in self._owed.items() if name not in uuids}
            return True

    def _take(self) -> GpuSnapshot:
        seen = self._look()
        if seen is not self._last:
            bad = bad_cards(self._known, seen)
            self._owed = advance(self._owed, bad, to_wire(now()))
            self._bad_since_begin.update(bad)
            self._bad = bad
            self._last = seen
            if seen.collector_error is None and seen.gpus is not None:
                self._known = seen.gpus
        return seen
