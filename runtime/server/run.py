"""One server process from its settings to its exit code."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

from runtime.protocol.build import this_build
from runtime.protocol.problems import Problem
from runtime.server import open_files
from runtime.server.app import assemble
from runtime.server.doorbell import Doorbell
from runtime.server.exit_codes import EXIT_CANNOT_WRITE, EXIT_FAULT, EXIT_UNAVAILABLE
from runtime.server.mirror import Mirror
from runtime.server.parts import Parts
from runtime.server.serving import ListenError, Server
from runtime.server.store.errors import StoreError

log = logging.getLogger(__name__)


class Process:
    """Addresses first, then the database, then requests: whatever is wrong is said before anything is served."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._exit_code = 0
        self._server: Server | None = None
        self._mirror: Mirror | None = None

    def run(self) -> int:
        """Serve until SIGTERM, SIGINT or SIGHUP; the exit code: 0, 1, 69, 73 or 78."""
        parts = self._parts
        doorbell: Doorbell | None = None
        parts.settings = open_files.fitted(parts.settings)
        try:
            self._server = Server(assemble(parts), parts)
            doorbell = Doorbell(parts) if parts.settings.doorbell_listen else None
            self._mirror = Mirror(parts.settings) if parts.settings.mirror_listen else None
        except ListenError as error:
            log.error("%s", error)
            return EXIT_UNAVAILABLE
        # SIGHUP: the terminal went away. It ends the process anyway, so it does that cleanly.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        if doorbell is not None:
            doorbell.start()
        # Migrations may take long: meanwhile requests are answered with 503 'starting'.
        starter = threading.Thread(target=self._start, name="start", daemon=True)
        starter.start()
        self._server.run()
        if doorbell is not None:
            doorbell.stop()
        starter.join()
        if self._mirror is not None:
            self._mirror.join()
        parts.stop()
        log.info("stopped")
        return self._exit_code

    def _start(self) -> None:
        assert self._server is not None
        try:
            self._parts.start()
        except StoreError as error:
            log.error("%s", error)
            self._exit_code = error.exit_code
            self._server.stop()
        except Problem as problem:
            log.error("the control plane did not start: %s", problem.detail)
            self._exit_code = EXIT_CANNOT_WRITE
            self._server.stop()
        except Exception:
            log.exception("the control plane did not start")
            self._exit_code = EXIT_FAULT
            self._server.stop()
        else:
            settings = self._parts.settings
            if self._mirror is not None:
                self._mirror.start()  # only now: its folder lies in state_dir, which is made with the database
            places = [settings.listen]
            places += [f"doorbell on {settings.doorbell_listen}"] if settings.doorbell_listen else []
            places += [f"mirror on {settings.mirror_listen}"] if settings.mirror_listen else []
            log.info("heterofleet %s ready on %s", this_build(), ", ".join(places))

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        log.info("%s: answering what is in flight, then stopping", signal.Signals(number).name)
        assert self._server is not None
        self._server.stop()
        if self._mirror is not None:
            self._mirror.stop()  # at the same time, so that both finish within the time that the unit gives
