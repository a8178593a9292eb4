"""A control plane of the test's own on loopback: real HTTP, scripted answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional

CONTROL_PLANE = "11111111-2222-3333-4444-555555555555"
DEADLINE_S = 40.0


@dataclass
class Reply:
    """``hang`` seconds before anything is sent; ``cut`` closes the connection in the middle of the body."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    hang: float = 0.0
    cut: bool = False
    drop: bool = False


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    at: float


def problem(status: int, code: str, **members: Any) -> Reply:
    body = {"type": "urn:x", "title": code, "status": status, "detail": "why", "code": code, **members}
    return Reply(status, body, {"Content-Type": "application/problem+json"})


def beat_answer(**members: Any) -> Reply:
    body = {
        "registered": True,
        "control_plane_id": CONTROL_PLANE,
        "revision": 5,
        "time": "2026-01-01T00:00:00Z",
        "interval_s": 5,
        "pending": {"tasks": 0, "slices": 0, "images": 0, "files": 0},
        **members,
    }
    return Reply(200, body)


class StubServer:
    """Answers with what ``answers`` (path -> reply, or a function of the request) says; 200 ``{}`` else."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.answers: dict[str, Any] = {}
        self.news = threading.Condition()
        self.closing = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                stub.handle(self)

            do_GET = do_POST = do_PUT = _any

            def log_message(self, *arguments: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        if self.closing.is_set():
            handler.close_connection = True  # a connection that was kept from before
            return
        length = int(handler.headers.get("Content-Length") or 0)
        raw = handler.rfile.read(length)
        path = handler.path.split("?")[0]
        request = Request(
            handler.command,
            handler.path,
            {key.lower(): value for key, value in handler.headers.items()},
            json.loads(raw) if raw else None,
            time.monotonic(),
        )
        with self.news:
            self.requests.append(request)
            self.news.notify_all()
        reply = self.answers.get(path, Reply(200, {}))
        if callable(reply):
            reply = reply(request)
        if reply.hang:
            self.closing.wait(reply.hang)
        if reply.drop:
            handler.close_connection = True
            handler.connection.close()
            return
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        try:
            handler.send_response(reply.status)
            headers = {"Content-Type": "application/json", "X-Control-Plane-Id": CONTROL_PLANE, "X-Revision": "5"}
            for key, value in {**headers, **reply.headers}.items():
                handler.send_header(key, value)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body[: len(body) // 2] if reply.cut else body)
            if reply.cut:
                handler.close_connection = True
        except OSError:
            handler.close_connection = True

    def of(self, path: str) -> list[Request]:
        with self.news:
            return [request for request in self.requests if request.path.split("?")[0] == path]

    def wait_for(self, path: str, count: int = 1, deadline_s: float = DEADLINE_S) -> list[Request]:
        """At least ``count`` requests to ``path``."""
        wait_until(lambda: len(self.of(path)) >= count, deadline_s, self.news, f"{count} requests to {path}")
        return self.of(path)

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()


def wait_until(
    check: Callable[[], Any],
    deadline_s: float = DEADLINE_S,
    news: Optional[threading.Condition] = None,
    what: str = "the condition",
) -> Any:
    """The first true value of ``check``."""
    condition = news or threading.Condition()
    deadline = time.monotonic() + deadline_s
    while True:
        value = check()
        if value:
            return value
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise AssertionError(f"{what} did not come within {deadline_s} s")
        with condition:
            condition.wait(min(0.05, remaining))


@contextmanager
def stub_server(port: int = 0) -> Iterator[StubServer]:
    server = StubServer(port)
    try:
        yield server
    finally:
        server.close()
