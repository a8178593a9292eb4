"""What comes over a connection to an engine: bodies within bounds, lines, and what its errors mean."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

from runtime.agent.drivers.errors import EngineUnavailable

if TYPE_CHECKING:
    import requests

BODY_BYTES = 64 << 20
"""An answer beyond that is no list of containers or images."""

WORDS_BYTES = 1 << 16
LINE_BYTES = 1 << 20
Keep = Callable[[int], Callable[[], None]]
"""Gets a connection's descriptor, and returns what ends that connection wherever it is held."""


@dataclass(frozen=True)
class Said:
    """A small answer: its JSON (None where it is none), its words, and whether they are the engine's own."""

    document: Any
    text: str
    by_engine: bool


def words_of(response: requests.Response, ends: float) -> Said:
    """Reads and closes it; the times are those of :func:`content_of`."""
    try:
        content = content_of(response, WORDS_BYTES, ends)
    finally:
        response.close()
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return Said(None, content[:4096].decode("utf-8", "replace").strip() or f"HTTP {response.status_code}", False)
    message = document.get("message") if isinstance(document, dict) else None
    return Said(document, str(message or f"HTTP {response.status_code}").strip(), bool(message))


def content_of(response: requests.Response, limit: int, ends: float) -> bytes:
    """The body, whole. Raises OSError when it is larger than ``limit`` bytes or has not ended at that moment: a
    silence is ended by the transport, but one that goes on for ever is not."""
    content = bytearray()
    while True:
        piece = read(response)
        if not piece:
            return bytes(content)
        content += piece
        if len(content) > limit:
            raise OSError(f"its answer is larger than {limit} bytes")
        if time.monotonic() > ends:
            raise TimeoutError("its answer does not end")


def read(response: requests.Response) -> bytes:
    """What has come, at least one byte; empty at the end. Another thread may close the response meanwhile."""
    try:
        return bytes(response.raw.read1(65536))
    except (ValueError, AttributeError) as error:
        raise OSError("the connection was closed") from error


def kept(response: requests.Response, keep: Optional[Keep]) -> Callable[[], None]:
    """Have a stream's connection kept; returns what ends it."""
    if keep is not None:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a transport without a descriptor
            return keep(response.raw.fileno())
    return lambda: None


def lines_of(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Lines of a stream, without their ends; the rest behind the last one too. One without an end is no answer."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while (end := buffer.find(b"\n")) >= 0:
            yield bytes(buffer[:end])
            del buffer[: end + 1]
        if len(buffer) > LINE_BYTES:
            raise EngineUnavailable(f"the engine's stream has a line of more than {LINE_BYTES} bytes")
    yield bytes(buffer)


@functools.cache
def no_answer() -> tuple[type[Exception], ...]:
    """What the transport raises when no usable answer came."""
    import docker.errors
    import requests
    import urllib3.exceptions

    return (
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        docker.errors.DockerException,
        http.client.HTTPException,
        OSError,
        ValueError,
    )


def is_timeout(error: BaseException) -> bool:
    """Whether the transport gave up waiting, rather than the other end."""
    import requests
    import urllib3.exceptions

    return isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError))


def short(error: BaseException) -> str:
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
