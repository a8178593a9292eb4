"""How a task ended, from what the engine says of its container and what we wrote down before we acted. Pure.

The order of the questions is the contract's: our own journalled signal, never started, start error, an end that
nobody can account for, exit code 0, memory, signal, exit code. Logs never change the verdict.
"""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass
from enum import Enum
from typing import Optional

from runtime.agent.drivers.driver import Facts
from runtime.agent.tasks.images import classify_start_error, engine_line
from runtime.protocol.reasons import EXIT_TIMEOUT, Reason
from runtime.protocol.states import Status
from runtime.protocol.tasks import TaskWarning
from runtime.protocol.times import from_wire

SIGNAL_BASE = 128
EXIT_NOT_SEEN = 255
"""Docker writes this when it comes back and finds a container gone that it did not see ending."""

OOM_INSIDE = "oom_inside"
STARTED_AGAIN = "started_again"
"""Codes of warnings."""

HOST_DOWN = "the machine went down under it"

NOT_RUN = (126, 127)
"""What an init process ends with when it cannot run the program; a program may end so, too."""


class StopReason(str, Enum):
    """Why we ended a container. Journalled before its signal is sent."""

    OPERATOR = "operator"
    TIMEOUT = "timeout"
    START_TIMEOUT = "start_timeout"
    HEALTH = "health"
    SLEEP = "sleep"
    VOLUME = "volume"
    STALE = "stale"


class Sent(str, Enum):
    """What became of a journalled signal."""

    INTENDED = "intended"
    SENT = "sent"
    MISSED = "missed"


@dataclass(frozen=True)
class Stop:
    """A journalled stop. ``at`` is the wall time just before the signal, in seconds since the epoch;
    ``mono`` the same moment by the monotonic clock of the machine's run ``mark``."""

    reason: StopReason
    at: float
    sent: Sent = Sent.INTENDED
    mono: Optional[float] = None
    mark: Optional[str] = None


@dataclass(frozen=True)
class Conclusion:
    """How an attempt ended. ``warnings`` are true beside it and do not change the verdict."""

    status: Status
    reason: Reason
    exit_code: Optional[int] = None
    error: Optional[str] = None
    warnings: tuple[TaskWarning, ...] = ()


@dataclass(frozen=True)
class Circumstances:
    """What was seen beside the container: its start call was answered with ``start_error``; its init process
    found nothing to run (``missing_program``); engine or host went down around its end. Of a signal whose answer we
    did not live to see: ``signalled``, whether the engine sent one before the end (None: it cannot say), and
    ``moments``, when the end may have been by the monotonic clock of this run of the machine, ``mark``."""

    stop: Optional[Stop] = None
    signalled: Optional[bool] = None
    moments: tuple[float, ...] = ()
    mark: Optional[str] = None
    start_error: Optional[str] = None
    missing_program: Optional[str] = None
    engine_restarted: bool = False
    host_restarted: bool = False


_STOPPED: dict[StopReason, tuple[Status, Reason, str]] = {
    StopReason.OPERATOR: (Status.STOPPED, Reason.STOPPED_BY_OPERATOR, "stopped by the operator"),
    StopReason.TIMEOUT: (Status.FAILED, Reason.TIMEOUT, "ran out of its time limit"),
    StopReason.START_TIMEOUT: (Status.FAILED, Reason.START_TIMEOUT, "was not ready within its start limit"),
    StopReason.HEALTH: (Status.FAILED, Reason.HEALTH_FAILED, "failed its health probe"),
    StopReason.VOLUME: (Status.FAILED, Reason.VOLUME_REJECTED, "a mount source was swapped after the check"),
    StopReason.SLEEP: (Status.SLEEPING, Reason.STOPPED_BY_OPERATOR, "put to sleep"),
    StopReason.STALE: (Status.STOPPED, Reason.STOPPED_BY_OPERATOR, "stopped because another attempt took over"),
}


def classify(facts: Facts, seen: Circumstances) -> Conclusion:
    """The conclusion about a container that does not run any more."""
    verdict = _verdict(_as_far_as_known(facts, seen), seen)
    if not facts.restarted:
        return verdict
    words = f"the engine had started it again {facts.restarted} time(s): somebody had set a restart policy"
    return dataclasses.replace(verdict, warnings=(*verdict.warnings, TaskWarning(STARTED_AGAIN, words)))


def _as_far_as_known(facts: Facts, seen: Circumstances) -> Facts:
    """What the engine writes in place of a code that it never heard is nobody's exit code."""
    away = seen.host_restarted or seen.engine_restarted
    return dataclasses.replace(facts, exit_code=None) if away and facts.exit_code == EXIT_NOT_SEEN else facts


def _verdict(facts: Facts, seen: Circumstances) -> Conclusion:
    if seen.stop is not None and _preceded(seen.stop, facts, seen):
        return _by_stop(seen.stop.reason, facts)
    if facts.started_at is None:
        text = facts.error or seen.start_error
        if not text:
            return Conclusion(Status.FAILED, Reason.NEVER_STARTED, error="the container was made but never started")
        return start_failure(text)
    if seen.missing_program is not None and facts.exit_code in NOT_RUN:
        return start_failure(seen.missing_program)
    if seen.host_restarted:
        return Conclusion(Status.FAILED, Reason.HOST_RESTARTED, facts.exit_code, HOST_DOWN)
    if seen.engine_restarted:
        return Conclusion(Status.FAILED, Reason.ENGINE_RESTARTED, facts.exit_code, "Docker went down under it")
    if facts.exit_code is None or facts.state == "dead" or (facts.exit_code == EXIT_NOT_SEEN and facts.error):
        words = engine_line(facts.error) if facts.error else "Docker cannot say how it ended"
        return Conclusion(Status.FAILED, Reason.END_UNKNOWN, facts.exit_code, words)
    return _by_exit(facts, facts.exit_code)


def start_failure(text: str) -> Conclusion:
    """The engine refused to create or start a container; ``text`` is its own words."""
    return Conclusion(Status.FAILED, classify_start_error(text).reason, error=engine_line(text))


def _by_stop(reason: StopReason, facts: Facts) -> Conclusion:
    status, code, words = _STOPPED[reason]
    exit_code = EXIT_TIMEOUT if reason is StopReason.TIMEOUT else facts.exit_code
    return Conclusion(status, code, exit_code, None if reason is StopReason.OPERATOR else words)


def _by_exit(facts: Facts, exit_code: int) -> Conclusion:
    if exit_code == 0:
        warnings = (TaskWarning(OOM_INSIDE, "a process in it was killed for memory"),) if facts.oom_killed else ()
        return Conclusion(Status.COMPLETED, Reason.EXITED, 0, warnings=warnings)
    if facts.oom_killed:
        return Conclusion(Status.FAILED, Reason.OOM_KILLED, exit_code, "killed for memory: it reached its limit")
    number = exit_code - SIGNAL_BASE
    if exit_code > SIGNAL_BASE and number in {int(member) for member in signal.Signals}:
        return Conclusion(
            Status.FAILED, Reason.SIGNALLED, exit_code, f"killed by signal {number} ({signal.Signals(number).name})"
        )
    return Conclusion(Status.FAILED, Reason.EXITED, exit_code)


def _preceded(stop: Stop, facts: Facts, seen: Circumstances) -> bool:
    """Whether our signal came before the end.

    The engine's answer to the signal tells: taken, or nobody was there. When we died in between, its news of the end
    tell. Only without them do times decide, and in doubt it was our signal: a stop was wanted, and it ended.
    """
    if stop.sent is not Sent.INTENDED:
        return stop.sent is Sent.SENT
    if seen.signalled is not None:
        return seen.signalled
    if facts.finished_at is None:
        return True
    finished = from_wire(facts.finished_at).timestamp()
    if stop.mono is None or stop.mark != seen.mark:
        return finished >= stop.at
    # The wall clock may have been set since: the engine's date is read by how it stood then, and by how it stands.
    then = finished - (stop.at - stop.mono)
    return any(moment >= stop.mono for moment in (then, *seen.moments))
