"""A control plane that answers what the test wrote down, over a real socket, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from runtime.protocol.problems import MEDIA_TYPE, Problem


@dataclass(frozen=True)
class Reply:
    """``headers`` come on top of a control plane's own; ``hang_up`` ends the connection without an answer."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    ours: bool = True
    hang_up: bool = False


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


def reply(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode())


def problem(code: str, detail: str, status: int | None = None, **members: Any) -> Reply:
    made = Problem(code, detail, status=status, **members)
    return Reply(made.status, json.dumps(made.document("cp-1")).encode(), MEDIA_TYPE)


class ScriptedPlane:
    """``on("GET", path, a, b)``: the first request gets a, all later ones b."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._script: dict[tuple[str, str], list[Reply]] = {}
        self._lock = threading.Lock()
        plane = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                asked = Asked(
                    self.command,
                    parts.path,
                    parse_qs(parts.query),
                    {name.lower(): value for name, value in self.headers.items()},
                    json.loads(raw) if raw else None,
                )
                chosen = plane._next(asked)
                if chosen.hang_up:
                    self.close_connection = True
                    return
                self.send_response(chosen.status)
                self.send_header("Content-Length", str(len(chosen.body)))
                if chosen.body:
                    self.send_header("Content-Type", chosen.kind)
                if chosen.ours:
                    self.send_header("X-Control-Plane-Id", "cp-1")
                    self.send_header("X-Revision", "1")
                for name, value in chosen.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(chosen.body)

            do_GET = do_POST = do_DELETE = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def on(self, method: str, path: str, *replies: Reply) -> None:
        self._script[method, path] = list(replies)

    def _next(self, asked: Asked) -> Reply:
        with self._lock:
            self.asked.append(asked)
            replies = self._script.get((asked.method, asked.path))
            if replies is None:
                return problem("route_not_found", f"Nothing is at {asked.path}.")
            return replies.pop(0) if len(replies) > 1 else replies[0]

    def __enter__(self) -> ScriptedPlane:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
