"""The faults that networks, proxies and servers really have, by name; see :class:`tests.faults.relay.Fault`."""

from __future__ import annotations

import threading

from tests.faults.relay import Fault

DROP_REQUEST = Fault(times=0, lose=True)
"""The call never reaches the server; the caller's connection is reset."""
DROP_ANSWER = Fault(lose=True)
"""The server does it; the caller never learns."""
DUPLICATE = Fault(times=2)
"""The server gets it twice, the caller the second answer."""


def delay(seconds: float) -> Fault:
    """The call is late."""
    return Fault(delay_s=seconds)


def slow_answer(seconds: float) -> Fault:
    """The answer is late."""
    return Fault(answer_delay_s=seconds)


def hold(until: threading.Event) -> Fault:
    """The call waits while others overtake it."""
    return Fault(hold=until)


def hang(until: threading.Event) -> Fault:
    """The server does it, and the connection then stays open without a word."""
    return Fault(hang=until, lose=True)


def cut(at: int) -> Fault:
    """The server does it, and the answer breaks off after so many bytes of its body."""
    return Fault(cut_at=at)


def instead(status: int, body: str = "", kind: str = "text/html", *, forwarded: bool = False, more: str = "") -> Fault:
    """Somebody else answers: ``more`` holds further header lines, each with its line end."""
    data = body.encode()
    head = (
        f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{more}Connection: close\r\n\r\n"
    )
    return Fault(times=1 if forwarded else 0, answer=head.encode() + data)


BAD_GATEWAY = instead(502, "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>")
NOT_FOUND_OF_A_PROXY = instead(404, "<html><body><h1>404 Not Found</h1></body></html>")
SERVER_ERROR = instead(500, "Internal Server Error", "text/plain")
