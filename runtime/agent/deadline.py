"""Looking at things that may hang: nobody waits for one that is stuck.

What hangs is left behind in a daemon thread; the process ends without it.
"""

from __future__ import annotations

import threading
from typing import Callable, Generic, Optional, TypeVar

T = TypeVar("T")


class Late(Exception):
    """No answer within the deadline."""


def within(seconds: float, look: Callable[[], T]) -> T:
    """What ``look`` returns or raises; Late when it takes longer."""
    begun = Begun(look)
    if not begun.wait(seconds):
        raise Late
    return begun.result()


class Begun(Generic[T]):
    """One call, begun in a daemon thread of its own."""

    def __init__(self, look: Callable[[], T]) -> None:
        self._done = threading.Event()
        self._value: list[T] = []
        self._error: Optional[BaseException] = None
        threading.Thread(target=self._run, args=(look,), daemon=True, name="look").start()

    def wait(self, seconds: Optional[float]) -> bool:
        """Whether it is over, at the latest after so many seconds (None: however long it takes)."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """What it returned or raised; only when it is over."""
        if self._error is not None:
            raise self._error
        return self._value[0]

    def _run(self, look: Callable[[], T]) -> None:
        try:
            self._value.append(look())
        except BaseException as error:  # handed to who waits
            self._error = error
        finally:
            self._done.set()
