"""The named steps of a task's way, in their order.

Every step is announced before it is taken, to whoever listens: the log, and tests that end the agent at each
of them. What has a lasting effect elsewhere (claim, start, signal, report) is written down in the step before.
"""

from __future__ import annotations

from enum import Enum
from typing import Callable


class Step(str, Enum):
    JOURNAL_CLAIM = "journal_claim"
    SEND_CLAIM = "send_claim"
    CLAIM_STORED = "claim_stored"
    CHECK = "check"
    PULL_START = "pull_start"
    PULL_DONE = "pull_done"
    CREATE = "create"
    CREATED = "created"
    JOURNAL_START = "journal_start"
    START = "start"
    STARTED = "started"
    PROBE_READY = "probe_ready"
    JOURNAL_STOP = "journal_stop"
    SIGNAL = "signal"
    ENDED = "ended"
    CONCLUDE = "conclude"
    SEND_REPORT = "send_report"
    REPORT_STORED = "report_stored"
    REMOVE = "remove"
    FORGET = "forget"


Trace = Callable[[str, int, Step], None]
"""Called with uid and attempt just before a step."""


def no_trace(uid: str, attempt: int, step: Step) -> None:
    """For those who do not listen."""
