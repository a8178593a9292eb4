"""Connections that outlive this run of the agent: kept by systemd while the agent is replaced.

An engine gives up a pull when the connection that asked for it ends. systemd's store of descriptors (sd_notify(3),
``FDSTORE``) holds such a connection from one run of the agent to the next. The next run asks for the image again,
which joins what is under way, and reads the old connection empty so that the engine is not held up by it. Without
systemd nothing is kept, and a pull begins anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import MutableMapping
from typing import Callable, Optional

from runtime.agent.notify import Notifier

log = logging.getLogger(__name__)

FIRST_FD = 3
PREFIX = "pull-"


class Handover:
    """Made first of all at a start: what an earlier run left is taken out of ``environ`` at once."""

    def __init__(self, notifier: Notifier, environ: Optional[MutableMapping[str, str]] = None) -> None:
        self._notifier = notifier
        self._left = _inherited(os.environ if environ is None else environ)

    def keep(self, descriptor: int) -> Callable[[], None]:
        """Have the connection of this descriptor kept. Returns what ends the connection, kept or not."""
        name = PREFIX + secrets.token_hex(8)
        kept = socket.socket(fileno=os.dup(descriptor))
        self._notifier.store(kept.fileno(), name)
        return lambda: self._end(kept, name)

    def drain(self, limit_s: float) -> None:
        """Read empty what an earlier run left, in the background, until the other end is done or the time is up."""
        if self._left:
            log.info("%d pull(s) of the run before are under way", len(self._left))
            threading.Thread(target=self._drain, args=(limit_s,), name="handover", daemon=True).start()

    def _drain(self, limit_s: float) -> None:
        ends = time.monotonic() + limit_s
        while self._left and time.monotonic() < ends:
            ready, _, _ = select.select(self._left, [], [], ends - time.monotonic())
            for one in ready:
                if not _read(self._left[one]) and one in self._left:
                    self._end(self._left.pop(one), "")
        for one in list(self._left):
            self._end(self._left.pop(one), "")

    def _end(self, one: socket.socket, name: str) -> None:
        # Shut, not only closed: systemd holds it, too, and lets go of what is shut by itself.
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
        if name:
            self._notifier.forget(name)


def _read(one: socket.socket) -> bool:
    try:
        return bool(one.recv(65536))
    except OSError:
        return False


def _inherited(environ: MutableMapping[str, str]) -> dict[int, socket.socket]:
    """Connections that systemd hands over, by descriptor (sd_listen_fds(3)); what is none of ours is closed."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit():
        return {}
    found: dict[int, socket.socket] = {}
    for number in range(int(count)):
        descriptor = FIRST_FD + number
        try:
            os.set_inheritable(descriptor, False)
            if number < len(names) and names[number].startswith(PREFIX):
                found[descriptor] = socket.socket(fileno=descriptor)
            else:
                os.close(descriptor)
        except OSError as error:
            log.warning("descriptor %d of the run before cannot be used: %s", descriptor, error)
    return found
