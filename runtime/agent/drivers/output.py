"""What a driver tells of a task's output: raw bytes, and places in them that outlive a restart of the agent.

A place is a *mark*: a short text that only its driver reads, such as an offset in a file. ``""`` is the place before
the first byte. The server keeps the mark of the last byte that it holds, so that whoever follows a log after a
restart goes on where the one before stopped: nothing twice, and nothing missing that the driver still has.

A driver implements two calls, each of which raises DriverError:

- ``log_rest(id, limit_bytes, after="", thorough=True) -> LogRest``: what was written since the place ``after``. Not
  thorough: at a small cost, whatever the task wrote meanwhile; then it may say that something is gone where a
  thorough look would find it.
- ``log_follow(id, after, on_open) -> Iterator[LogPiece]``: what comes behind ``after``, as it comes, until the task
  ends or the stream is closed. LogLost: the place is not there any more; ask ``log_rest`` what is.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.agent.drivers.errors import DriverError


class LogLost(DriverError):
    """The place that a stream was to go on from is gone: rotated away."""


@dataclass(frozen=True)
class LogRest:
    """The output behind a place.

    ``size`` bytes of it are known to have been written, the last of them are ``data``. ``whole`` False: there were
    more between the place and the first of these, gone by now, and nobody knows how many. ``mark`` is the place
    behind the last byte.
    """

    data: bytes
    size: int
    whole: bool
    mark: str


@dataclass(frozen=True)
class LogPiece:
    """Some bytes as they were written. The place behind the first n of them is ``prefix`` and the number
    ``base + n``."""

    data: bytes
    prefix: str
    base: int = 0

    def mark(self, size: int) -> str:
        """The place behind the first ``size`` bytes."""
        return f"{self.prefix}{self.base + size}"
