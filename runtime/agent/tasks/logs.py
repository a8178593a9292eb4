"""Live logs: while somebody reads a task's output, new bytes go to the server as they come.

Positions count raw bytes from the first that the engine still has. What is not sent (a backlog beyond what the
reader asked for, or more than 1 MiB a second) is counted as dropped and said, never skipped in silence.
"""

from __future__ import annotations

import codecs
import logging
import threading
import time
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.drivers.errors import DriverError
from runtime.agent.link.errors import LinkError, Refused
from runtime.agent.tasks.pool import Pool
from runtime.protocol.tasks import LOG_KEEP_BYTES, LogChunk
from runtime.protocol.times import from_wire, now

if TYPE_CHECKING:
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.protocol.heartbeat import Follow

log = logging.getLogger(__name__)

READERS = 8
SENDERS = 2
FLUSH_S = 0.5
RATE_BYTES_S = 1024 * 1024
CHUNK_BYTES = 256 * 1024


class LogShipper:
    """Follows the tasks that the newest heartbeat's answer names; each ends when nobody asks any more."""

    def __init__(self, parts: Parts, claims: Claims) -> None:
        self._parts = parts
        self._claims = claims
        self._pool = Pool("logs", READERS)
        self._senders = Pool("log-send", SENDERS)
        self._lock = threading.Lock()
        self._open: dict[str, _Stream] = {}

    def follow(self, wanted: list[Follow]) -> None:
        """Start and end streams so that they are those of ``wanted``; returns at once."""
        named: dict[str, Follow] = {}
        for follow in wanted:
            for held in self._claims.all():
                same = (held.record.task_id, held.key.attempt) == (follow.task_id, follow.attempt)
                if same and held.record.container_id is not None:
                    named[held.name] = follow
        with self._lock:
            for name in set(self._open) - set(named):
                self._open[name].close()
            for name, follow in named.items():
                stream = self._open.get(name)
                if stream is not None:
                    stream.until = follow.until
                    continue
                stream = _Stream(self._parts, self._senders, self._held(name), follow)
                self._open[name] = stream
                self._pool.submit(name, lambda name=name, stream=stream: self._run(name, stream))  # type: ignore[misc]

    def stop(self) -> None:
        with self._lock:
            for stream in self._open.values():
                stream.close()
        self._pool.stop(0.0)
        self._senders.stop(0.0)

    def _held(self, name: str) -> Held:
        return next(held for held in self._claims.all() if held.name == name)

    def _run(self, name: str, stream: _Stream) -> None:
        try:
            stream.run()
        except DriverError as error:
            log.debug("the log stream of %s ended: %s", name, error)
        finally:
            with self._lock:
                if self._open.get(name) is stream:
                    del self._open[name]


class _Stream:
    """One task's output: its reader fills a bounded buffer, a sender paced by a timer empties it."""

    def __init__(self, parts: Parts, senders: Pool, held: Held, follow: Follow) -> None:
        self._parts = parts
        self._senders = senders
        self._held = held
        self._keep = min(follow.from_tail_bytes if follow.from_tail_bytes is not None else 65536, LOG_KEEP_BYTES)
        self.until = follow.until
        self._close: Optional[Callable[[], None]] = None
        self._closed = False
        self._buffer = bytearray()
        self._end = 0  # raw position behind the buffer
        self._server_end: Optional[int] = None
        self._started = False
        self._armed = False
        self._budget = float(RATE_BYTES_S)
        self._budget_at = time.monotonic()

    def close(self) -> None:
        self._closed = True
        if self._close is not None:
            self._close()

    def run(self) -> None:
        container_id = self._held.record.container_id
        if container_id is None:
            return
        timers = self._parts.timers
        name = ("log", self._held.name)
        lock = threading.Lock()

        def flush_later() -> None:
            self._senders.submit(self._held.name, flush)

        def flush() -> None:
            with lock:
                self._armed = False
                self._flush()
                if self._buffer and not self._closed:
                    arm()

        def arm() -> None:
            # Armed once, not put off by every new line: a program that prints all the time is read all the time.
            if not self._armed:
                self._armed = True
                timers.after(name, FLUSH_S, flush_later)

        try:
            for piece in self._parts.driver.log_stream(container_id, self._opened):
                with lock:
                    self._take(piece)
                    arm()
                if self._closed or self._over():
                    break
        finally:
            timers.cancel(name)
            with lock:
                self._flush(final=True)

    def _opened(self, close: Callable[[], None]) -> None:
        self._close = close
        if self._closed:
            close()

    def _over(self) -> bool:
        return self.until is not None and now() > from_wire(self.until)

    def _take(self, piece: bytes) -> None:
        self._buffer += piece
        self._end += len(piece)
        keep = LOG_KEEP_BYTES if self._started else max(self._keep, 1)
        if len(self._buffer) > keep:
            del self._buffer[: len(self._buffer) - keep]

    def _flush(self, final: bool = False) -> None:
        """Send what is buffered, in whole characters, within the rate."""
        self._started = True
        while self._buffer:
            now_s = time.monotonic()
            self._budget = min(RATE_BYTES_S, self._budget + (now_s - self._budget_at) * RATE_BYTES_S)
            self._budget_at = now_s
            if self._budget < 1:
                return
            size = whole_characters(bytes(self._buffer[: int(min(CHUNK_BYTES, self._budget))]))
            if size == 0:
                if not final:
                    return
                size = len(self._buffer)
            start = self._end - len(self._buffer)
            if not self._send(bytes(self._buffer[:size]), start):
                return
            self._budget -= size
            del self._buffer[:size]

    def _send(self, raw: bytes, start: int) -> bool:
        for _ in range(2):
            held_end = self._server_end if self._server_end is not None else 0
            if held_end > start:
                skip = min(held_end - start, len(raw))  # the server has that already
                raw, start = raw[skip:], start + skip
                if not raw:
                    return True
            record = self._held.record
            chunk = LogChunk(
                attempt=record.key.attempt,
                claim_token=record.claim_token,
                start=start,
                end=start + len(raw),
                data=raw.decode("utf-8", "replace").replace("\0", ""),
                dropped=start - held_end,
            )
            try:
                self._parts.client.post_logs(record.task_id, chunk)
            except Refused as refused:
                end = refused.problem.members.get("held_end")
                if refused.problem.code != "log_offset" or not isinstance(end, int):
                    self.close()
                    return False
                self._server_end = end
                continue
            except LinkError as error:
                log.debug("log of task %s: %s", record.task_id, error)
                return False
            self._server_end = start + len(raw)
            return True
        return False


def whole_characters(raw: bytes) -> int:
    """How many leading bytes hold only whole UTF-8 characters (bytes that are none count as whole)."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(raw)
    pending = decoder.getstate()[0]
    return len(raw) - len(pending)
