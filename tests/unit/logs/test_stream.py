"""What a follower's stream sends when the server holds another part of the log than the agent thinks."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, Callable

import pytest

from runtime.agent.drivers.output import LogPiece, LogRest
from runtime.agent.link.errors import Refused
from runtime.agent.tasks.logs import _Stream
from runtime.protocol.problems import ProblemDocument
from runtime.protocol.tasks import LogChunk

OUTPUT = b"".join(b"line %d\n" % number for number in range(40))


class Server:
    """Takes a chunk only where it fits, as the control plane does; loses the answer to the first."""

    def __init__(self) -> None:
        self.text = b""
        self.calls = 0

    def post_logs(self, task_id: str, chunk: LogChunk) -> None:
        self.calls += 1
        if chunk.start - chunk.dropped != len(self.text):
            held = {"held_end": len(self.text), "held_mark": str(len(self.text))}
            raise Refused(ProblemDocument(409, "log_offset", "it does not follow", members=held))
        self.text += chunk.data.encode()


class Driver:
    """An engine whose marks are positions. ``while_looking`` runs in the middle of a thorough look."""

    def __init__(self) -> None:
        self.while_looking: Callable[[], None] = lambda: None

    def log_rest(self, container_id: str, limit_bytes: int, after: str, thorough: bool) -> LogRest:
        data = OUTPUT[int(after or "0") :]
        if thorough:
            self.while_looking()
        return LogRest(data, len(data), True, str(len(OUTPUT)))

    def log_follow(self, container_id: str, after: str, on_open: Any) -> list[LogPiece]:
        return []


def stream_of(server: Server, driver: Driver) -> _Stream:
    record = SimpleNamespace(
        key=SimpleNamespace(attempt=1), claim_token="a token", task_id="one", container_id="of-the-engine"
    )
    held = SimpleNamespace(name="one", record=record, log_end=None)
    timers = SimpleNamespace(after=lambda *words: None, cancel=lambda *words: None)
    parts: Any = SimpleNamespace(client=server, timers=timers, driver_of=lambda held: driver)
    senders: Any = SimpleNamespace(submit=lambda *words: None)
    return _Stream(parts, senders, held, len(OUTPUT))  # type: ignore[arg-type]


def test_a_sender_that_comes_while_the_place_is_looked_for_sends_nothing_twice() -> None:
    """The server had a part already. While the agent looked what is behind that, a sender that was due sent the old
    buffer's beginning at the server's end, where it fitted: those lines were in the log twice."""
    server, driver = Server(), Driver()
    stream = stream_of(server, driver)
    server.text = OUTPUT[:80]  # of an answer that was lost
    looks, late = [], []

    def look() -> None:
        looks.append(server.calls)
        if len(looks) == 2:
            late.append(threading.Thread(target=stream._flush))
            late[0].start()
            late[0].join(10)

    driver.while_looking = look
    stream.run()
    assert len(looks) >= 2, "the first chunk was refused, and the place was looked for again"
    assert server.text == OUTPUT


@pytest.mark.parametrize(("again_s", "text"), [(60.0, OUTPUT), (None, b"")], ids=["the key is refused", "this log is"])
def test_a_log_outlives_a_key_that_is_refused_for_a_while(again_s: float | None, text: bytes) -> None:
    """A reader saw nothing more of a running task after the operator had mistyped a new key for a minute."""
    server = Server()
    stream = stream_of(server, Driver())
    takes, server.post_logs = server.post_logs, Refusing(again_s)  # type: ignore[method-assign]
    stream._buffer.add(OUTPUT, str)
    stream._flush()
    server.post_logs = takes  # type: ignore[method-assign]
    if not stream._closed.is_set():
        stream._flush(final=True)
    assert server.text == text


class Refusing:
    def __init__(self, again_s: float | None) -> None:
        self.again_s = again_s

    def __call__(self, task_id: str, chunk: LogChunk) -> None:
        raise Refused(ProblemDocument(401 if self.again_s else 403, "x", "no"), again_s=self.again_s)
