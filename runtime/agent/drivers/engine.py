"""Docker's HTTP API over its socket: connection, version, deadlines, and errors in our own words.

docker-py brings the transport. Requests are made through its session directly, because its convenience calls read
the user's Docker configuration (stored credentials, proxies) and would put them where nobody asked for them. No
variable of the environment is looked at either. Whatever answers, be it rubbish without an end, a call ends in time
and raises nothing but a DriverError.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Callable, Optional

from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable, NotThere, StreamSilent
from runtime.agent.drivers.negotiation import OLDEST, choose
from runtime.agent.drivers.transport import (
    BODY_BYTES,
    Keep,
    Said,
    content_of,
    is_timeout,
    kept,
    no_answer,
    read,
    short,
    words_of,
)

if TYPE_CHECKING:
    import requests
    from docker.api.client import APIClient

CONNECT_S = 3.0
CALL_S = 30.0
VERSION_S = 10.0
SAME_CLOCK_S = 2.0
_HALF_AWAY = "containerd.sock"
_WRONG_VERSION = ("client version", "is too old", "is too new")


@dataclass(frozen=True)
class _Connected:
    """A session with an engine, and the version that is spoken in it."""

    client: APIClient
    version: str


class DockerEngine:
    """One engine. Made without contacting it; connects at the first call and again after a failure.

    ``call_s`` bounds the first question of a connection, which asks for the engine's version. Threads that wait
    for it share its outcome: an engine that hangs holds up each of them once.
    """

    def __init__(self, host: Optional[str] = None, *, call_s: float = VERSION_S) -> None:
        self._host = host
        self._call_s = call_s
        self._lock = threading.Lock()
        self._connected: Optional[_Connected] = None
        self._failure: tuple[float, str] = (float("-inf"), "")
        self._ahead_s = 0.0

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Optional[dict[str, Any]] = None,
        body: Any = None,
        timeout_s: float = CALL_S,
    ) -> Any:
        """The JSON of the answer, None when it has none. Raises EngineUnavailable, EngineRefused, NotThere."""
        ends = time.monotonic() + timeout_s
        connected = self._connect()
        response = self._send(connected, method, path, params, body, None, timeout_s)
        try:
            content = content_of(response, BODY_BYTES, ends)
        except no_answer() as error:
            raise self._unavailable(connected, error) from error
        finally:
            response.close()
        if not content:
            return None
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise EngineUnavailable(f"the engine's answer to {method} {path} is not JSON") from error

    def call_lines(self, path: str, *, params: dict[str, Any], timeout_s: float) -> list[bytes]:
        """The lines of an answer that ends by itself. Raises as :meth:`call` does."""
        ends = time.monotonic() + timeout_s
        connected = self._connect()
        response = self._send(connected, "GET", path, params, None, None, timeout_s)
        try:
            return content_of(response, BODY_BYTES, ends).splitlines()
        except no_answer() as error:
            raise self._unavailable(connected, error) from error
        finally:
            response.close()

    def wall(self) -> float:
        """The engine's wall clock, in seconds since the epoch: ours, unless its answers are dated otherwise."""
        return time.time() + self._ahead_s

    def _note_clock(self, date: Optional[str]) -> None:
        """``Date`` has whole seconds: a smaller difference is none."""
        try:
            ahead_s = parsedate_to_datetime(date or "").timestamp() - time.time()
        except (ValueError, TypeError, IndexError, OverflowError):
            return
        self._ahead_s = ahead_s if abs(ahead_s) >= SAME_CLOCK_S else 0.0

    def head(self, path: str, *, params: dict[str, Any], timeout_s: float) -> dict[str, str]:
        """The headers of an answer that has no body. Raises as :meth:`call` does."""
        response = self._send(self._connect(), "HEAD", path, params, None, None, timeout_s)
        response.close()
        return dict(response.headers)

    def _send(
        self,
        connected: _Connected,
        method: str,
        path: str,
        params: Optional[dict[str, Any]],
        body: Any,
        headers: Optional[dict[str, str]],
        timeout_s: float,
    ) -> requests.Response:
        """One request, its body unread: whoever gets it closes it. A refusal is raised."""
        client = connected.client
        try:
            response = client.request(
                method,
                f"{client.base_url}/v{connected.version}{path}",
                params=params,
                json=body,
                headers=headers,
                timeout=(CONNECT_S, timeout_s),
                stream=True,
                allow_redirects=False,
            )
            self._note_clock(response.headers.get("Date"))
            if response.status_code < 400:
                return response
            said = words_of(response, time.monotonic() + timeout_s)
        except no_answer() as error:
            raise self._unavailable(connected, error) from error
        raise self._refusal(connected, response.status_code, said, method)

    def stream(
        self,
        path: str,
        *,
        params: dict[str, Any],
        on_open: Callable[[Callable[[], None]], None],
        method: str = "GET",
        headers: Optional[dict[str, str]] = None,
        timeout_s: float,
        keep: Optional[Keep] = None,
    ) -> Iterator[bytes]:
        """The answer's body as it comes. ``on_open`` gets a function that ends the stream from any thread;
        ``timeout_s`` bounds each silence: StreamSilent. A stream that breaks raises EngineUnavailable. ``keep`` gets
        the connection's descriptor, and returns what ends the connection wherever else it is held."""
        response = self._send(self._connect(), method, path, params, None, headers, timeout_s)

        def close() -> None:
            try:
                response.raw.shutdown()
            except (ValueError, RuntimeError, AttributeError, OSError):
                response.close()

        release = kept(response, keep)
        on_open(close)
        try:
            while True:
                piece = read(response)
                if not piece:
                    return
                yield piece
        except no_answer() as error:
            if is_timeout(error):
                raise StreamSilent(f"nothing came for {timeout_s:g} s") from error
            raise EngineUnavailable(short(error)) from error
        finally:
            release()
            response.close()

    def _connect(self) -> _Connected:
        asked = time.monotonic()
        with self._lock:
            if self._connected is not None:
                return self._connected
            failed_at, text = self._failure
            if failed_at >= asked:
                raise EngineUnavailable(text)  # found out while we waited for our turn
            try:
                self._connected = self._negotiated()
            except EngineUnavailable as error:
                self._failure = (time.monotonic(), str(error))
                raise
            return self._connected

    def _negotiated(self) -> _Connected:
        from docker.api.client import APIClient  # 0.2 s that the first beat does not wait for

        try:
            client = APIClient(base_url=self._host, version=".".join(map(str, OLDEST)), timeout=int(self._call_s))
        except Exception as error:  # the user's Docker configuration, which it reads, may hold anything
            raise EngineUnavailable(f"Docker cannot be called: {short(error)}") from error
        client.trust_env = False
        # An engine that goes down takes no new connection while it ends its containers, but goes on answering over
        # those that it has: each answer shall mean that it is not going down. Nor is one lost that was kept too long.
        client.headers["Connection"] = "close"
        try:
            response = client.request(
                "GET",
                f"{client.base_url}/version",
                timeout=(CONNECT_S, self._call_s),
                stream=True,
                allow_redirects=False,
            )
            said = words_of(response, time.monotonic() + self._call_s)
            if response.status_code != 200:
                raise EngineUnavailable(said.text)
            return _Connected(client, choose(said.document))
        except no_answer() as error:
            client.close()
            raise EngineUnavailable(f"Docker does not answer: {short(error)}") from error
        except EngineUnavailable:
            client.close()
            raise

    def _drop(self, connected: _Connected) -> None:
        """The next engine behind the socket may speak another version."""
        with self._lock:
            if self._connected is connected:
                self._connected = None
        connected.client.close()

    def _unavailable(self, connected: _Connected, error: Exception) -> EngineUnavailable:
        self._drop(connected)
        return EngineUnavailable(f"Docker does not answer: {short(error)}")

    def _refusal(self, connected: _Connected, status: int, said: Said, method: str) -> Exception:
        if status == 404:
            # Only the engine knows what is not there; one that was asked without a body answers without.
            if method == "HEAD" or (said.by_engine and said.text != "page not found"):
                return NotThere(status, said.text)
            return EngineUnavailable(f"what answers in Docker's place says 404: {said.text[:200]}")
        text = said.text
        if status == 503 or (_WRONG_VERSION[0] in text and any(word in text for word in _WRONG_VERSION[1:])):
            self._drop(connected)
            return EngineUnavailable(text)
        if status >= 500 and _HALF_AWAY in text:
            return EngineUnavailable(text)  # the part of it that runs containers is being restarted
        return EngineRefused(status, text)
