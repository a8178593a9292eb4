"""Docker's events, so that an end is noticed at once. Losing them costs latency only: the poll sees it too."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.drivers.errors import DriverError, StreamSilent
from runtime.agent.loop import Backoff

if TYPE_CHECKING:
    from runtime.agent.tasks.outages import Outages
    from runtime.agent.tasks.parts import Parts

log = logging.getLogger(__name__)


class EventThread:
    """Reads the engine's event stream and calls ``on_event`` with the uid; connects again for ever."""

    def __init__(self, parts: Parts, outages: Outages, on_event: Callable[[str], None]) -> None:
        self._parts = parts
        self._outages = outages
        self._on_event = on_event
        self._stop = threading.Event()
        self._close: Optional[Callable[[], None]] = None
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        close = self._close
        if close is not None:
            close()

    def _run(self) -> None:
        pauses = Backoff(0.5, 10.0, least_s=0.2)
        while not self._stop.is_set():
            try:
                for uid in self._parts.driver.events(self._opened):
                    pauses.reset()
                    self._outages.alive()
                    self._on_event(uid)
                self._ended()
            except StreamSilent:
                continue
            except DriverError as error:
                log.debug("the engine's events ended: %s", error)
                self._ended()
            self._stop.wait(pauses.next())

    def _ended(self) -> None:
        """An engine that goes down closes its streams first and ends its containers after."""
        if not self._stop.is_set():
            self._outages.gone(noticed_at_once=True)

    def _opened(self, close: Callable[[], None]) -> None:
        self._close = close
        if self._stop.is_set():
            close()
