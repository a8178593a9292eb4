"""HTTP/1.1 messages on sockets, as bytes: just enough to pass them on unchanged."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

HEAD_MAX = 256 * 1024
PIECE = 65536
BODYLESS = (204, 304)


class Gone(Exception):
    """The other side closed or reset its connection, or said something that is not HTTP."""


@dataclass(frozen=True)
class Head:
    """A message's first line and headers. ``raw`` is what was read, to be passed on as it is."""

    raw: bytes
    first: tuple[str, str, str]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def length(self) -> int | None:
        said = self.headers.get("content-length", "")
        return int(said) if said.isdigit() else None

    @property
    def closes(self) -> bool:
        return "close" in self.headers.get("connection", "").lower() or "HTTP/1.0" in self.first


class Reader:
    """Reads one side of a connection; what is read too far is kept for the next message."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.held = b""

    def more(self) -> bytes:
        """What is there next; empty at the end."""
        if self.held:
            piece, self.held = self.held, b""
            return piece
        try:
            return self.sock.recv(PIECE)
        except OSError as error:
            raise Gone(str(error)) from error

    def head(self) -> Head:
        """The next message's head; Gone when there is none."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.more()
            if not piece or len(data) > HEAD_MAX:
                raise Gone("no (more) message")
            data += piece
        raw, _, self.held = data.partition(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").split("\r\n")
        words = (*first.split(" ", 2), "", "", "")[:3]
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Head(raw + b"\r\n\r\n", (words[0], words[1], words[2]), headers)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.more()
            if not piece:
                raise Gone(f"{len(data)} bytes of {count}")
            data += piece
        self.held = data[count:] + self.held
        return data[:count]

    def line(self) -> bytes:
        data = b""
        while b"\n" not in data:
            piece = self.more()
            if not piece:
                raise Gone("in a line")
            data += piece
        line, _, self.held = data.partition(b"\n")
        return line + b"\n"

    def chunks(self) -> Iterator[tuple[bytes, bytes]]:
        """(raw, content) of each chunk; the last one, with its trailer, has no content."""
        while True:
            size = self.line()
            try:
                count = int(size.split(b";")[0].strip(), 16)
            except ValueError as error:
                raise Gone(f"not a chunk: {size[:20]!r}") from error
            content = self.exactly(count) if count else b""
            if count:
                yield size + content + self.line(), content
                continue
            raw = size
            while True:
                trailer = self.line()
                raw += trailer
                if trailer in (b"\r\n", b"\n"):
                    yield raw, b""
                    return

    def pieces(self, head: Head, bodyless: bool) -> Iterator[tuple[bytes, bytes]]:
        """(raw, content) of an answer's body as it comes."""
        if bodyless:
            return
        if head.chunked:
            yield from self.chunks()
            return
        left = head.length
        while left is None or left > 0:
            piece = self.more()
            if not piece:
                if left:
                    raise Gone(f"{left} bytes short")
                return
            if left is not None:
                piece, self.held = piece[:left], piece[left:]
                left -= len(piece)
            yield piece, piece

    def request_body(self, head: Head) -> tuple[bytes, bytes]:
        """(raw, content) of a request's body, whole."""
        if head.chunked:
            both = list(self.chunks())
            return b"".join(raw for raw, _ in both), b"".join(content for _, content in both)
        body = self.exactly(head.length or 0)
        return body, body


def is_hijacked(request: Head, answer: Head) -> bool:
    """Attach and exec turn the connection into a raw one without saying 101 to older clients."""
    return "upgrade" in request.headers and answer.length is None and not answer.chunked
