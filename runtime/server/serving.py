"""Serving the application with waitress, and ending it without dropping a request in flight."""

from __future__ import annotations

import functools
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import flask
from waitress.channel import HTTPChannel  # type: ignore[import-untyped]
from waitress.parser import HTTPRequestParser, ParsingError  # type: ignore[import-untyped]
from waitress.server import BaseWSGIServer, create_server  # type: ignore[import-untyped]
from waitress.task import ErrorTask, WSGITask  # type: ignore[import-untyped]

from runtime.protocol import routes
from runtime.protocol.problems import MEDIA_TYPE, Problem
from runtime.server.api.agent import CLOSE
from runtime.server.parts import Parts
from runtime.server.settings import split_listen

log = logging.getLogger(__name__)

CHANNEL_TIMEOUT_S = 120
"""A connection on which nothing moves for this long is closed."""
FINISH_S = 20.0
"""How long requests in flight may take when the server is told to stop."""
QUIET_S = 0.3
"""How long nobody must have asked before open connections are closed: what was sent over one just now would be lost,
and its sender was not told that the connection ends."""
HEADER_LIMIT = 64 * 1024


class ListenError(Exception):
    """The address cannot be listened on; one sentence."""


class Listener:
    """One application on one address. The address is taken in the constructor, so a port in use is known at once.

    ``setting`` is what names ``listen``, for the error. Raises ListenError.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        listen: str,
        setting: str,
        *,
        channel: Callable[[threading.Event], type[HTTPChannel]],
        threads: int,
        connection_limit: int,
        max_body: int,
    ) -> None:
        self._socket = bind(listen, setting)
        self.port: int = self._socket.getsockname()[1]
        self._map: dict[int, Any] = {}
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._server: BaseWSGIServer = create_server(
            app,
            map=self._map,
            sockets=[self._socket],
            threads=threads,
            connection_limit=connection_limit,
            max_request_body_size=max_body,
            max_request_header_size=HEADER_LIMIT,
            asyncore_use_poll=True,
            channel_timeout=CHANNEL_TIMEOUT_S,
            cleanup_interval=10,
            # Which peers are proxies is decided in the application (see proxies.py), which knows networks too.
            clear_untrusted_proxy_headers=False,
            ident="heterofleet",
            backlog=2048,
        )
        self._server.channel_class = channel(self._stopping)
        _quiet_queue()

    def run(self) -> None:
        """Serve until :meth:`stop`; returns when every request in flight is answered, or after FINISH_S."""
        try:
            while not self._stopping.is_set():
                self._server.asyncore.loop(timeout=1, map=self._map, use_poll=True, count=1)
            self._finish()
        finally:
            self._server.task_dispatcher.shutdown(timeout=1)
            self._server.asyncore.close_all(self._map, ignore_all=True)
            self._stopped.set()

    def stop(self) -> None:
        """Ask :meth:`run` to end; safe in a signal handler and in any thread."""
        self._stopping.set()
        try:
            self._server.pull_trigger()
        except OSError:
            pass  # it has ended already

    def _finish(self) -> None:
        self._server.accepting = False
        self._socket.close()
        deadline = time.monotonic() + FINISH_S
        # New connections are refused by now; whoever is half way through a request gets an answer.
        self._map.pop(self._server._fileno, None)
        quiet_since = time.monotonic()
        while time.monotonic() < deadline:
            channels = [channel for channel in list(self._map.values()) if isinstance(channel, HTTPChannel)]
            if any(_is_busy(channel) for channel in channels):
                quiet_since = time.monotonic()
            elif not channels or time.monotonic() - quiet_since >= QUIET_S:
                return
            self._server.asyncore.loop(timeout=0.1, map=self._map, use_poll=True, count=1)


def _is_busy(channel: HTTPChannel) -> bool:
    return bool(channel.requests or channel.request is not None or channel.total_outbufs_len)


class Server(Listener):
    """The HTTP server of the API. Raises ListenError."""

    def __init__(self, app: flask.Flask, parts: Parts) -> None:
        settings = parts.settings
        super().__init__(
            app,
            settings.listen,
            "listen",
            channel=functools.partial(_channel_class, parts),
            threads=settings.threads,
            connection_limit=settings.connection_limit,
            # Above our own limit, so that a body a little too large gets our answer; one far too large is cut off.
            max_body=2 * settings.max_body_bytes + 1,
        )


def bind(listen: str, setting: str) -> socket.socket:
    """A listening socket on ``host:port``, which ``setting`` names. Raises ListenError with one sentence."""
    host, port = split_listen(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(
            f"The address {listen} cannot be used ({error.strerror}); set {setting} to host:port."
        ) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(2048)
    except OSError as error:
        made.close()
        raise ListenError(
            f"The address {listen} cannot be listened on ({error.strerror}); stop what holds it, or set {setting} "
            "to another host:port."
        ) from None
    return made


def _quiet_queue() -> None:
    # A queue of a few requests is the ordinary state of a busy server, not something to warn of each time.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except ValueError as error:
            # A target that urllib cannot split would end the connection without an answer, and be logged as a fault.
            raise ParsingError(str(error)) from None


def plain_channel(stopping: threading.Event) -> type[HTTPChannel]:
    """Connections that end with their present request once ``stopping`` is set."""

    class Answer(WSGITask):  # type: ignore[misc]
        def build_response_header(self) -> bytes:
            if self.close_on_finish or stopping.is_set():
                # A client that keeps its connection would go on asking over it, and the server would never be idle.
                self.set_close_on_finish()
            header: bytes = super().build_response_header()
            return header

    class Channel(HTTPChannel):  # type: ignore[misc]
        task_class = Answer
        parser_class = _Parser

    return Channel


def _channel_class(parts: Parts, stopping: threading.Event) -> type[HTTPChannel]:
    """As plain_channel, and the application may end a connection; refusals are problem documents."""
    plain = plain_channel(stopping)

    class Answer(plain.task_class):  # type: ignore[misc,name-defined]
        def get_environment(self) -> dict[str, Any]:
            environ: dict[str, Any] = super().get_environment()
            environ[CLOSE] = self.end_connection
            return environ

        def end_connection(self) -> None:
            self.close_on_finish = True

    class Refusal(ErrorTask):  # type: ignore[misc]
        """What waitress itself refuses: the same document as everywhere else."""

        def execute(self) -> None:
            document = _refusal(self.request.error).document(parts.db.control_plane_id or None)
            body = json.dumps({**document, "status": self.request.error.code}).encode()
            self.status = f"{self.request.error.code} {self.request.error.reason}"
            self.response_headers.extend(
                [
                    ("Content-Type", MEDIA_TYPE),
                    (routes.HEADER_CONTROL_PLANE, parts.db.control_plane_id),
                    (routes.HEADER_REVISION, str(parts.db.revision)),
                ]
            )
            self.set_close_on_finish()
            self.content_length = len(body)
            self.write(body)

    class Channel(plain):  # type: ignore[misc,valid-type]
        task_class = Answer
        error_task_class = Refusal

    return Channel


def _refusal(error: Any) -> Problem:
    if error.code == 413:
        return Problem(
            "body_too_large", "The body is far larger than this server takes; send less, or raise max_body_mib."
        )
    return Problem("bad_parameter", f"The request cannot be read: {error.reason}.")
