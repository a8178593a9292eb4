"""An engine that is none: it answers any bytes that a test wants, over a Unix socket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Answer = Callable[[], Iterator[bytes]]
VERSION = {"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Version": "20.10"}


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    # Each connection is for one answer: who asks again on this one would only meet its end.
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Rubbish:
    """``answer``: what every call but the question for the version gets, piece by piece. ``version``: what that one
    gets."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix://{path}"
        self.version: Answer = lambda: iter([whole(json.dumps(VERSION).encode())])
        self.answer: Answer = lambda: iter([])
        self._over = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def forever(self, piece: bytes, pause_s: float = 0.0, head: bytes = b"") -> Answer:
        """The same bytes until nobody listens any more, or the test is over."""

        def pieces() -> Iterator[bytes]:
            yield head
            while not self._over.wait(pause_s):
                yield piece

        return pieces

    def hang(self, head: bytes = b"") -> Answer:
        def pieces() -> Iterator[bytes]:
            yield head
            self._over.wait(60)

        return pieces

    def close(self) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            asked = b""
            while b"\r\n\r\n" not in asked:
                data = near.recv(65536)
                if not data:
                    return
                asked += data
            answer = self.version if b" /version " in asked.partition(b"\r\n")[0] else self.answer
            for piece in answer():
                near.sendall(piece)
