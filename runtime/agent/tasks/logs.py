"""Live logs: while somebody reads a task's output, new bytes go to the server as they come.

Positions count raw bytes since the container's start. What is not sent (a backlog beyond what the reader asked for,
or more than 1 MiB a second) is counted as dropped; where the driver itself has lost output, that is said. The server
keeps the place of the last byte that it holds: whoever follows after a restart asks it, and goes on from there.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Callable, Optional

from runtime.agent.drivers.errors import DriverError, StreamSilent
from runtime.agent.drivers.output import LogLost
from runtime.agent.link.errors import LinkError, Refused
from runtime.agent.tasks.log_buffer import Allowance, Chunk, LogBuffer
from runtime.agent.tasks.log_end import Moved, ServerEnd, put
from runtime.agent.tasks.pool import Pool
from runtime.protocol.tasks import LOG_KEEP_BYTES, LOG_TAIL_BYTES
from runtime.protocol.times import from_wire

if TYPE_CHECKING:
    from runtime.agent.tasks.held import Held
    from runtime.agent.tasks.parts import Claims, Parts
    from runtime.protocol.heartbeat import Follow, HeartbeatAnswer

log = logging.getLogger(__name__)

READERS = 32
"""So many logs of one node are read live at once; who asks for one more waits until another reader goes."""

SENDERS = 4
FLUSH_S = 0.5
RATE_BYTES_S = 1024 * 1024
CHUNK_BYTES = 256 * 1024
LOOK_S = 1.0
READ_BYTES_S = 8 * 1024 * 1024
READ_PIECES_S = 30_000
"""A task that prints more than this in a second is not read as it prints, but looked at once a second: what it costs
does not grow with what it prints."""

FOLLOW_S = 60.0
"""How long a follow that names no end holds."""

LAST_WORDS_S = 3.0
"""How long a conclusion waits for a stream that is still being sent."""


class LogShipper:
    """Follows the tasks that heartbeat answers name, each until the moment that the last of them says."""

    def __init__(self, parts: Parts, claims: Claims) -> None:
        self._parts = parts
        self._claims = claims
        self._pool = Pool("logs", READERS)
        self._senders = Pool("log-send", SENDERS)
        self._lock = threading.Lock()
        self._open: dict[str, _Stream] = {}

    def follow(self, answer: HeartbeatAnswer) -> None:
        """Begin and prolong streams as the answer says; returns at once."""
        if not answer.follow:
            return
        held_now = {(held.record.task_id, held.key.attempt): held for held in self._claims.all()}
        for follow in answer.follow:
            held = held_now.get((follow.task_id, follow.attempt))
            if held is None or held.record.container_id is None:
                continue
            with self._lock:
                stream = self._open.get(held.name)
                if stream is None:
                    stream = _Stream(self._parts, self._senders, held, follow.from_tail_bytes)
                    self._open[held.name] = stream
                    self._pool.submit(held.name, lambda stream=stream: self._run(stream))  # type: ignore[misc]
            stream.prolong(seconds_left(follow, answer.time))

    def last_words(self, held: Held) -> None:
        """What was printed last, to the server before the end is reported; best effort. The conclusion has a tail of
        its own, but no positions: where a log is followed, it would not be known what is between the two."""
        stream = self._open.get(held.name)
        if stream is not None:
            if stream.started:
                stream.done.wait(LAST_WORDS_S)
            stream.close()
        if held.record.container_id is None:
            return
        end = held.log_end or ServerEnd(self._parts, held)
        try:
            for _ in range(2):
                buffer, _place = end.catch_up(LOG_KEEP_BYTES if end.end.position else LOG_TAIL_BYTES, False)
                try:
                    while (chunk := buffer.next(RATE_BYTES_S, final=True)) is not None:
                        end.send(chunk)
                        buffer.sent(chunk)
                    return
                except Moved:
                    continue
        except Exception as error:  # whatever is wrong with a log must not keep the end itself from the server
            known = isinstance(error, (DriverError, LinkError))
            log.log(
                logging.DEBUG if known else logging.ERROR,
                "the end of the log of task %s is not sent: %s", held.record.task_id, error, exc_info=not known,
            )  # fmt: skip

    def stop(self) -> None:
        with self._lock:
            for stream in self._open.values():
                stream.close()
        self._pool.stop(0.0)
        self._senders.stop(0.0)

    def _run(self, stream: _Stream) -> None:
        try:
            stream.run()
        except (DriverError, LinkError) as error:
            log.debug("the log stream of %s ended: %s", stream.name, error)
        finally:
            with self._lock:
                self._open.pop(stream.name, None)
            stream.close()
            stream.done.set()


def seconds_left(follow: Follow, server_time: str) -> float:
    """How long the follow holds, by the server's clock alone."""
    try:
        return (from_wire(follow.until) - from_wire(server_time)).total_seconds() if follow.until else FOLLOW_S
    except ValueError:
        return FOLLOW_S


class _Stream:
    """One task's output: its reader fills a bounded buffer, senders paced by a timer empty it."""

    def __init__(self, parts: Parts, senders: Pool, held: Held, from_tail_bytes: Optional[int]) -> None:
        self.name = held.name
        self.started = False
        self.done = threading.Event()
        self._parts = parts
        self._senders = senders
        self._held = held
        self._driver = parts.driver_of(held)
        self._backlog = min(from_tail_bytes if from_tail_bytes is not None else LOG_TAIL_BYTES, LOG_KEEP_BYTES)
        self._end = held.log_end or ServerEnd(parts, held)
        held.log_end = self._end
        self._buffer = LogBuffer(LOG_KEEP_BYTES)
        self._place = ""
        self._lock = threading.Lock()  # the buffer
        self._sending = threading.Lock()
        self._armed = False
        self._over = False  # nothing is sent any more
        self._closed = threading.Event()
        self._moved = threading.Event()
        self._close: Optional[Callable[[], None]] = None
        self._allowance = Allowance(RATE_BYTES_S, RATE_BYTES_S, time.monotonic())

    def prolong(self, seconds: float) -> None:
        self._parts.timers.after(("log-until", self.name), seconds, self.close)

    def close(self) -> None:
        self._parts.timers.cancel(("log-until", self.name))
        self._closed.set()
        self._hang_up()

    def run(self) -> None:
        """Until the task has ended or nobody asks any more. Raises DriverError."""
        self.started = thorough = True
        ended = False
        try:
            while not (ended or self._closed.is_set()):
                self._look(thorough)
                try:
                    ended = self._read()
                except (LogLost, StreamSilent):
                    pass
                except DriverError:
                    if not (self._moved.is_set() or self._closed.is_set()):
                        raise
                thorough = self._moved.is_set()
                if not ended:
                    self._closed.wait(LOOK_S)
        finally:
            self._parts.timers.cancel(("log", self.name))
            self._flush(final=ended)
            with self._sending:
                self._over = True

    def _look(self, thorough: bool) -> None:
        """Everything between the place that was read last and now, at a bounded cost."""
        if thorough:
            # The server is asked what it holds by the first chunk that does not fit.
            for _ in range(2):
                self._moved.clear()
                found, place = self._end.catch_up(self._backlog, True)
                with self._lock:
                    self._buffer, self._place = found, place
                self._flush()
                if not self._moved.is_set():
                    return
            return
        rest = self._driver.log_rest(self._held.record.container_id or "", LOG_KEEP_BYTES, self._place, False)
        with self._lock:
            put(self._buffer, rest)
            self._place = rest.mark
        self._flush()

    def _read(self) -> bool:
        """What comes, as it comes. True: the output is over; False: read it in another way, or from elsewhere."""
        began, size, pieces = time.monotonic(), 0, 0
        for piece in self._driver.log_follow(self._held.record.container_id or "", self._place, self._opened):
            with self._lock:
                self._buffer.add(piece.data, piece.mark)
                self._place = piece.mark(len(piece.data))
            self._arm()
            if self._closed.is_set() or self._moved.is_set():
                return False
            size, pieces = size + len(piece.data), pieces + 1
            if size > READ_BYTES_S or pieces > READ_PIECES_S:
                now = time.monotonic()
                if now - began < 1.0:
                    return False
                began, size, pieces = now, 0, 0
        return not self._moved.is_set() and not self._closed.is_set()

    def _opened(self, close: Callable[[], None]) -> None:
        self._close = close
        if self._closed.is_set():
            close()

    def _hang_up(self) -> None:
        if self._close is not None:
            self._close()

    # Sending

    def _arm(self) -> None:
        # Armed once, not put off by every new line: a program that prints all the time is read all the time.
        if not self._armed:
            self._armed = True
            self._parts.timers.after(("log", self.name), FLUSH_S, self._flush_later)

    def _flush_later(self) -> None:
        self._senders.submit(self.name, self._flush)

    def _flush(self, final: bool = False) -> None:
        """Send what is held, within the rate. What cannot be sent now is tried again with what comes. ``final``: the
        output is over. What is left then goes with the last words."""
        with self._sending:
            self._armed = False
            if self._over:
                return
            try:
                while not self._moved.is_set() and (chunk := self._next(final)) is not None:
                    self._end.send(chunk)
                    self._allowance.left -= len(chunk.data)
                    with self._lock:
                        self._buffer.sent(chunk)
            except Moved:
                self._moved.set()
                self._hang_up()
                return
            except Refused as refused:
                log.debug("the log of task %s is not taken: %s", self._held.record.task_id, refused)
                if refused.again_s is None:  # the key's refusal says nothing of this log
                    self._closed.set()
                    self._hang_up()
                    return
            except LinkError as error:
                log.debug("log of task %s: %s", self._held.record.task_id, error)
        if len(self._buffer) and not self._closed.is_set():
            self._arm()

    def _next(self, final: bool) -> Optional[Chunk]:
        allowed = min(CHUNK_BYTES, self._allowance.available(time.monotonic()))
        with self._lock:
            if allowed < min(CHUNK_BYTES // 4, len(self._buffer)):
                return None  # a crumb at a time would be a request each
            return self._buffer.next(allowed, final=final)
