"""The control plane is told when a run begins and how it ended, so that its events say who did what to the fleet."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Sequence

from runtime.cli.client import Client
from runtime.cli.errors import CliError, ExitCode, Refusal
from runtime.protocol.nodes import FleetRunCode
from runtime.protocol.routes import EVENTS

DETAIL_CHARS = 1000


class Recorder:
    """``client`` None: nobody is told, for the reason ``why_not``; with ``later`` that is asked for a client at the end
    (it may raise CliError). What goes wrong is said, and stops no run of itself; a token that the control plane refuses
    does, before anything is touched."""

    def __init__(
        self,
        client: Client | None,
        say: Callable[[str], None],
        why_not: str = "",
        later: Callable[[], Client] | None = None,
    ) -> None:
        self._client, self._say, self._why_not, self._later = client, say, why_not, later
        self.began: bool | None = None
        self.ended: bool | None = None

    def begin(self, detail: str) -> None:
        """Raises CliError (not authorised)."""
        if self._client is None:
            if self._why_not:
                self._say(f"{'the begin of ' if self._later else ''}this run is not recorded: {self._why_not}")
            return
        self.began = self._tell(FleetRunCode.STARTED, detail, refuse=True)

    def end(self, detail: str) -> None:
        if self._later is not None:
            try:
                self._client = self._later()
            except CliError as error:
                self._say(f"this run is not recorded: {error.message}")
        if self._client is not None:
            self.ended = self._tell(FleetRunCode.ENDED, detail, refuse=False)

    def _tell(self, code: FleetRunCode, detail: str, refuse: bool) -> bool:
        assert self._client is not None
        text = detail if len(detail) <= DETAIL_CHARS else detail[: DETAIL_CHARS - 3] + "..."
        try:
            self._client.post(EVENTS, {"code": code.value, "detail": text})
        except Refusal as error:
            if refuse and error.exit_code == ExitCode.NOT_AUTHORISED:
                raise
            self._say(f"the control plane did not record this ({code.value}): {error.message}")
        except CliError as error:
            self._say(f"the control plane was not told ({code.value}), the run goes on: {error.message}")
        else:
            return True
        return False


def by_whom() -> str:
    """Where the command runs; the control plane adds the token's name."""
    try:
        who = getpass.getuser()
    except (KeyError, OSError):
        who = "somebody"
    return f"{who}@{socket.gethostname()}"


def names(hosts: Sequence[str], most: int = 20) -> str:
    """``a, b and 3 more``."""
    shown = ", ".join(hosts[:most])
    return f"{shown} and {len(hosts) - most} more" if len(hosts) > most else shown
