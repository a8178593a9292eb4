"""A door before a control plane: passes everything on, or answers as a test says; with TLS; or as a forward proxy."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Optional
from urllib.parse import urlsplit

from tests.lab import places

HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "proxy-authorization", "proxy-connection", "host")


@dataclass(frozen=True)
class Answer:
    """``length``: a Content-Length that differs from the body's."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: Optional[int] = None


@dataclass(frozen=True)
class Seen:
    """One request: method, the target as it was sent, and its headers with names in lower case."""

    method: str
    target: str
    headers: dict[str, str]


class Front(ThreadingHTTPServer):
    """``answers`` by path; all others go to ``upstream``, with ``key`` in place of the caller's where it is set."""

    daemon_threads = True

    def __init__(self, host: str, port: int, upstream: str, tls: Optional[ssl.SSLContext] = None) -> None:
        super().__init__((host, port), _Handler)
        self.upstream = urlsplit(upstream)
        self.answers: dict[str, Answer] = {}
        self.hold: Optional[Callable[[str], None]] = None
        self.key: Optional[str] = None
        self.seen: list[Seen] = []
        self._tls = tls

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{self.server_address[0]}:{self.server_address[1]}"

    def paths(self) -> list[str]:
        return [urlsplit(one.target).path for one in self.seen]

    def get_request(self) -> tuple[socket.socket, object]:
        connection, peer = super().get_request()
        if self._tls is None:
            return connection, peer
        # The handshake belongs to the caller's thread: it may never come.
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), peer

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that breaks off or refuses our certificate is what is being tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def do_GET(self) -> None:
        server = self.server
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        server.seen.append(Seen(self.command, self.path, headers))
        path = urlsplit(self.path).path
        if server.hold is not None:
            server.hold(path)
        said = server.answers.get(path)
        if said is not None:
            self._send(said)
        else:
            self._pass_on(headers, body)

    do_POST = do_PUT = do_HEAD = do_GET

    def _send(self, said: Answer) -> None:
        self.send_response(said.status)
        for name, value in said.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(said.body) if said.length is None else said.length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(said.body)
        self.close_connection = True

    def _pass_on(self, headers: dict[str, str], body: bytes) -> None:
        upstream = self.server.upstream
        target = urlsplit(self.path)
        connection = http.client.HTTPConnection(str(upstream.hostname), upstream.port, timeout=60)
        sent = {name: value for name, value in headers.items() if name not in HOP_BY_HOP}
        sent["Host"] = upstream.netloc
        if self.server.key is not None and "x-api-key" in sent:
            sent["x-api-key"] = self.server.key
        path = target.path + (f"?{target.query}" if target.query else "")
        try:
            connection.request(self.command, path, body or None, sent)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in (*HOP_BY_HOP, "content-length", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_CONNECT(self) -> None:
        """As a forward proxy for https: a tunnel to wherever the caller wants."""
        self.server.seen.append(Seen("CONNECT", self.path, {n.lower(): v for n, v in self.headers.items()}))
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=60) as there:
            self.send_response(200)
            self.end_headers()
            pair = (self.connection, there)
            while True:
                ready, _, _ = select.select(pair, [], [], 60)
                for one in ready:
                    data = one.recv(65536)
                    if not data:
                        self.close_connection = True
                        return
                    (there if one is self.connection else self.connection).sendall(data)
                if not ready:
                    return

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def front(
    upstream: str, *, host: str = places.HOST_ADDRESS, offset: int = 4, tls: Optional[ssl.SSLContext] = None
) -> Iterator[Front]:
    """Serving at the lab's address as long as the block runs; ``offset``: which of this user's ports."""
    made = Front(host, places.port(offset), upstream, tls)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()
