"""The doorbell: an open stream on which the server says "there is something for you".

It carries no state. Losing it costs latency only, since every heartbeat's answer says the same.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.link.client import ServerClient
from runtime.agent.link.errors import Unavailable
from runtime.agent.loop import Backoff, Loop
from runtime.protocol.heartbeat import CHANNELS

if TYPE_CHECKING:
    import requests

log = logging.getLogger(__name__)

SILENCE_S = 45.0
"""The server sends a comment every 15 s: a stream that is silent three times as long is dead."""

RECONNECT_FIRST_S = 2.0
RECONNECT_MAX_S = 60.0
LINE_LIMIT = 64 * 1024


class EventParser:
    """Server-sent events from pieces of a stream (WHATWG HTML, 9.2.6; only ``event`` and ``data`` count)."""

    def __init__(self) -> None:
        self._rest = b""
        self._event = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[tuple[str, str]]:
        """The (event, data) pairs that end in this piece."""
        found = []
        *lines, self._rest = (self._rest + piece).replace(b"\r\n", b"\n").split(b"\n")
        if len(self._rest) > LINE_LIMIT:
            raise Unavailable("the doorbell sends a line without end", answered=True)
        for raw in lines:
            line = raw.decode("utf-8", "replace")
            if not line:
                if self._data:
                    found.append((self._event or "message", "\n".join(self._data)))
                self._event, self._data = "", []
                continue
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "event":
                self._event = value
            elif name == "data":
                self._data.append(value)
        return found


class Doorbell:
    """Listens at the address that the heartbeat's answer named; ``on_wake`` gets the channels' names.

    ``may_connect``: whether the server is there by the last beat; while it is not, the beat alone asks.
    """

    def __init__(
        self,
        client: ServerClient,
        address: Callable[[], Optional[str]],
        on_wake: Callable[[list[str]], None],
        *,
        may_connect: Callable[[], bool] = lambda: True,
        silence_s: float = SILENCE_S,
        idle_s: float = 15.0,
    ) -> None:
        self._client = client
        self._address = address
        self._on_wake = on_wake
        self._may_connect = may_connect
        self._silence_s = silence_s
        self._stream: Optional[requests.Response] = None
        self._url: Optional[str] = None
        self._parser = EventParser()
        self.loop = Loop(
            "doorbell",
            idle_s,
            self.listen,
            backoff=Backoff(RECONNECT_FIRST_S, RECONNECT_MAX_S),
            deadline_s=silence_s + 15.0,
            first_delay_s=1.0,
        )

    def listen(self) -> None:
        """One piece of the stream; connects first where there is none."""
        url = self._address()
        if url != self._url or url is None:
            self.close()
        if url is None:
            return
        if self._stream is None:
            if not self._may_connect():
                return
            self._stream = self._client.doorbell(url, self._silence_s)
            self._url = url
            self._parser = EventParser()
        try:
            piece = self._stream.raw.read1(4096, decode_content=True)
        except Exception as error:  # urllib3's and the socket's errors: the stream is over either way
            self.close()
            raise Unavailable(f"the doorbell was cut: {type(error).__name__}") from None
        if not piece:
            self.close()
            raise Unavailable("the doorbell's stream ended")
        for event, data in self._parser.feed(piece):
            if event == "wake":
                self._on_wake(channels_of(data))
        self.loop.delay_next(0.0)

    def close(self) -> None:
        stream, self._stream, self._url = self._stream, None, None
        if stream is not None:
            stream.close()


def channels_of(data: str) -> list[str]:
    """The channels of a wake event; all of them when it cannot be read."""
    try:
        value = json.loads(data)
    except ValueError:
        return list(CHANNELS)
    channels = value.get("channels") if isinstance(value, dict) else None
    if not isinstance(channels, list):
        return list(CHANNELS)
    return [channel for channel in channels if isinstance(channel, str)]
