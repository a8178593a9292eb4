"""Telling systemd: ready, alive, going. Without systemd nothing happens."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Mapping
from typing import Optional


class Notifier:
    """Sends datagrams to NOTIFY_SOCKET (sd_notify(3)); a socket that is gone is no fault of the agent's."""

    def __init__(self, environ: Optional[Mapping[str, str]] = None) -> None:
        variables = os.environ if environ is None else environ
        address = variables.get("NOTIFY_SOCKET", "")
        # An address that begins with @ lies in the abstract name space.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(variables)
        """Within which time WATCHDOG=1 is expected; None when systemd does not watch this process."""

    def ready(self, text: str) -> None:
        self._send(f"READY=1\nSTATUS={text}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def store(self, descriptor: int, name: str) -> None:
        """Have systemd keep a descriptor for the next run, under that name (FDSTORE)."""
        self._send(f"FDSTORE=1\nFDNAME={name}", descriptor)

    def forget(self, name: str) -> None:
        """Have systemd close what it keeps under that name."""
        self._send(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def _send(self, text: str, descriptor: Optional[int] = None) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.connect(self._address)
                if descriptor is None:
                    sender.sendall(text.encode())
                else:
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
                    sender.sendmsg([text.encode()], [rights])
        except OSError:
            pass


def _watchdog_s(variables: Mapping[str, str]) -> Optional[float]:
    text = variables.get("WATCHDOG_USEC", "")
    watched = variables.get("WATCHDOG_PID", "")
    if not text.isdigit() or int(text) == 0 or (watched and watched != str(os.getpid())):
        return None
    return int(text) / 1e6
