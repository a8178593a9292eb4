"""The checks side by side, each within the deadline of all; what several need is looked at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Generic, Optional, TypeVar

from runtime.agent.deadline import Begun
from runtime.agent.doctor.findings import Finding, finding, unknown

T = TypeVar("T")
log = logging.getLogger(__name__)

WHOLE_S = 28.0
"""All checks together; what has not answered by then is said to be unknown."""


class Shared(Generic[T]):
    """Looked at once, for several checks: whoever comes first looks, the others wait for the same answer."""

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._box: Optional[Begun[T]] = None

    def get(self) -> T:
        with self._lock:
            if self._box is None:
                self._box = Begun(self._look)
        self._box.wait(None)
        return self._box.result()


@dataclass(frozen=True)
class Check:
    """A look with its verdict, for the line ``name``. ``at``: what it is busy with, told when it is late."""

    name: str
    look: Callable[[], Finding]
    at: Callable[[], str] = lambda: ""


def examine(checks: Sequence[Check], whole_s: float = WHOLE_S) -> list[Finding]:
    """All checks side by side, in the order given; nothing takes longer than ``whole_s``."""
    deadline = time.monotonic() + whole_s
    boxes = [Begun(check.look) for check in checks]
    return [_found(check, box, deadline, whole_s) for check, box in zip(checks, boxes)]


def _found(check: Check, box: Begun[Finding], deadline: float, whole_s: float) -> Finding:
    if not box.wait(max(0.0, deadline - time.monotonic())):
        busy = check.at()
        words = f"no answer in {whole_s:g} s" + (f" (busy with: {busy})" if busy else "")
        return finding(check.name, [unknown(words, "look at what hangs, and ask again")])
    try:
        return box.result()
    except Exception as error:  # one check that fails must not hide the others
        log.debug("the check %s failed", check.name, exc_info=True)
        words = f"the check itself failed ({type(error).__name__}: {error})"
        return finding(check.name, [unknown(words, "report this as a fault of the doctor")])
