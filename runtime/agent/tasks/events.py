"""An engine's events, so that an end is noticed at once. Losing them costs latency only: the poll sees it too."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.drivers.errors import DriverError, StreamSilent
from runtime.agent.loop import Backoff

if TYPE_CHECKING:
    from runtime.agent.tasks.engines import Engine

log = logging.getLogger(__name__)


class EventThread:
    """Reads the engine's event stream and calls ``on_event`` with the uid; connects again for ever."""

    def __init__(self, engine: Engine, on_event: Callable[[str], None]) -> None:
        self._engine = engine
        self._on_event = on_event
        self._stop = threading.Event()
        self._close: Optional[Callable[[], None]] = None
        self._thread = threading.Thread(target=self._run, name=f"events-{engine.name.value}", daemon=True)

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
                for uid in self._engine.driver.events(self._opened):
                    pauses.reset()
                    self._on_event(uid)
                self._ended()
            except StreamSilent:
                continue
            except DriverError as error:
                log.debug("the engine's events ended: %s", error)
                self._ended()
            self._stop.wait(pauses.next())

    def _ended(self) -> None:
        if not self._stop.is_set():
            self._engine.outages.gone()

    def _opened(self, close: Callable[[], None]) -> None:
        self._close = close
        if self._stop.is_set():
            close()
