"""Docker's HTTP API over its socket: connection, version, deadlines, and errors in our own words.

docker-py brings the transport and the version negotiation. Requests are made through its session directly,
because its convenience calls read the user's Docker configuration (stored credentials, proxies) and would
put them where nobody asked for them. No variable of the environment is looked at either.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, Optional

from runtime.agent.drivers.errors import EngineRefused, EngineUnavailable, NotThere, StreamSilent

if TYPE_CHECKING:
    import requests
    from docker.api.client import APIClient

CONNECT_S = 3.0
CALL_S = 30
_WRONG_VERSION = ("client version", "is too old", "is too new")


class DockerEngine:
    """One engine. Made without contacting it; connects at the first call and again after a failure."""

    def __init__(self, host: Optional[str] = None) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._client: Optional[APIClient] = None

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
        response = self.send(method, path, params=params, body=body, timeout_s=timeout_s)
        try:
            content = response.content
        except no_answer() as error:
            raise self._unavailable(error) from error
        if not content:
            return None
        try:
            return json.loads(content)
        except ValueError as error:
            raise EngineUnavailable(f"the engine's answer to {method} {path} is not JSON") from error

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Optional[dict[str, Any]] = None,
        body: Any = None,
        headers: Optional[dict[str, str]] = None,
        timeout_s: float = CALL_S,
        stream: bool = False,
    ) -> requests.Response:
        """One request. A refusal is raised; the caller of a stream closes it."""
        client = self._connected()
        try:
            response = client.request(
                method,
                f"{client.base_url}/v{client.api_version}{path}",
                params=params,
                json=body,
                headers=headers,
                timeout=(CONNECT_S, timeout_s),
                stream=stream,
                allow_redirects=False,
            )
            if response.status_code < 400 and response.status_code != 304:
                return response
            text = _message(response)
            response.close()
        except no_answer() as error:
            raise self._unavailable(error) from error
        if response.status_code == 304:
            return response
        raise self._refusal(response.status_code, text)

    def stream(
        self,
        path: str,
        *,
        params: dict[str, Any],
        on_open: Callable[[Callable[[], None]], None],
        method: str = "GET",
        headers: Optional[dict[str, str]] = None,
        timeout_s: float,
    ) -> Iterator[bytes]:
        """The answer's body as it comes. ``on_open`` gets a function that ends the stream from any thread;
        ``timeout_s`` bounds each silence: StreamSilent. A stream that breaks raises EngineUnavailable."""
        response = self.send(method, path, params=params, headers=headers, timeout_s=timeout_s, stream=True)

        def close() -> None:
            try:
                response.raw.shutdown()
            except (ValueError, RuntimeError, AttributeError, OSError):
                response.close()

        on_open(close)
        try:
            while True:
                piece = response.raw.read1(65536)
                if not piece:
                    return
                yield piece
        except no_answer() as error:
            if is_timeout(error):
                raise StreamSilent(f"nothing came for {timeout_s:g} s") from error
            raise EngineUnavailable(_short(error)) from error
        finally:
            response.close()

    def _connected(self) -> APIClient:
        with self._lock:
            if self._client is None:
                from docker.api.client import APIClient  # 0.2 s that the first beat does not wait for

                try:
                    client = APIClient(base_url=self._host, version="auto", timeout=CALL_S)
                except no_answer() as error:
                    raise EngineUnavailable(f"Docker does not answer: {_short(error)}") from error
                client.trust_env = False
                self._client = client
            return self._client

    def _unavailable(self, error: Exception) -> EngineUnavailable:
        with self._lock:
            self._client = None  # the next engine behind the socket may speak another version
        return EngineUnavailable(f"Docker does not answer: {_short(error)}")

    def _refusal(self, status: int, text: str) -> Exception:
        if status == 404:
            return NotThere(status, text)
        if status == 503 or (_WRONG_VERSION[0] in text and any(word in text for word in _WRONG_VERSION[1:])):
            with self._lock:
                self._client = None
            return EngineUnavailable(text)
        return EngineRefused(status, text)


@functools.cache
def no_answer() -> tuple[type[Exception], ...]:
    """What the transport raises when no usable answer came."""
    import docker.errors
    import requests
    import urllib3.exceptions

    return (requests.RequestException, urllib3.exceptions.HTTPError, docker.errors.DockerException, OSError)


def is_timeout(error: BaseException) -> bool:
    """Whether the transport gave up waiting, rather than the other end."""
    import requests
    import urllib3.exceptions

    return isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError))


def _message(response: requests.Response) -> str:
    """The engine's own words."""
    try:
        document = response.json()
    except ValueError:
        return response.text[:4096].strip() or f"HTTP {response.status_code}"
    text = document.get("message") if isinstance(document, dict) else None
    return str(text or f"HTTP {response.status_code}").strip()


def _short(error: BaseException) -> str:
    """The innermost cause of a library's nested errors, in one line."""
    seen: set[int] = set()
    cause: BaseException = error
    while id(cause) not in seen:
        seen.add(id(cause))
        inner = next((arg for arg in cause.args if isinstance(arg, BaseException)), None)
        cause = inner or cause.__cause__ or cause.__context__ or cause
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    text = text or type(cause).__name__
    return text if len(text) <= 400 else text[:397] + "..."
