"""What can go wrong between us and what runs containers.

Two kinds, because they are answered differently: no answer (nothing is known, ask again later) and a refusal
(an answer that says why).
"""

from __future__ import annotations


class DriverError(Exception):
    """Any failure of a driver's call."""


class EngineUnavailable(DriverError):
    """No usable answer. Whether the call had an effect is unknown."""


class StreamSilent(EngineUnavailable):
    """A stream said nothing for longer than its limit. The engine may be well."""


class EngineRefused(DriverError):
    """The engine answered and said no; ``text`` is its own words, ``status`` the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class NotThere(EngineRefused):
    """What was asked for does not exist."""


class PullFailed(DriverError):
    """A pull ended with an error of the registry or the engine; ``text`` is its own words."""

    def __init__(self, text: str, tail: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.text = text
        self.tail = tail


class PullStalled(DriverError):
    """A pull made no progress for too long, or ran out of its time; ``tail`` has its last lines."""

    def __init__(self, text: str, tail: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.text = text
        self.tail = tail


class PullCancelled(DriverError):
    """A pull was given up because nobody wants its image any more."""
