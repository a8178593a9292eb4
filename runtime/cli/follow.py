"""Watching a task until it ends: its log as it grows, its changes as they come, its exit code.

The watcher never touches the task: when it goes away, the task goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from runtime.cli.client import Answer, Client, part
from runtime.cli.errors import CliError, ExitCode, Unreachable
from runtime.cli.output import say
from runtime.protocol.codec import decode
from runtime.protocol.reasons import EXIT_TIMEOUT, Reason
from runtime.protocol.routes import TASKS
from runtime.protocol.states import TERMINAL, Status
from runtime.protocol.tasks import LOG_TAIL_BYTES, LogText

POLL_S = 0.5
PATIENCE_S = 60.0
"""How long the control plane may be away before the watcher gives up."""

CATCH_UP_S = 6.0
"""How long a look at a running task's log waits for the node: one beat, and a little."""

_TERMINAL = {status.value for status in TERMINAL}


def has_ended(task: Mapping[str, Any]) -> bool:
    """Whether the task (an API body) will never change again."""
    return task.get("status") in _TERMINAL


def exit_code_of(task: Mapping[str, Any]) -> int:
    """The exit code of a command that stands for the task's end.

    The task's own; 124 for its timeout; 70 when it ended without one. 0 means completed and nothing else: a
    program that returned 0 in a task that failed or was stopped gives 1.
    """
    if task.get("reason") == Reason.TIMEOUT.value:
        return EXIT_TIMEOUT
    code = task.get("exit_code")
    if not isinstance(code, int):
        return 0 if task.get("status") == Status.COMPLETED.value else ExitCode.ENDED_WITHOUT_CODE
    return code or (0 if task.get("status") == Status.COMPLETED.value else ExitCode.FAILED)


def end_sentence(task: Mapping[str, Any]) -> str:
    """How the task ended, in one line."""
    words = [f"task {task.get('id')} {task.get('status')}"]
    if task.get("reason"):
        words.append(f"({task['reason']})")
    if task.get("exit_code") is not None:
        words.append(f"with exit code {task['exit_code']}")
    if task.get("node_id"):
        words.append(f"on {task['node_id']}")
    return " ".join(words) + (f": {task['error']}" if task.get("error") else "")


_ANCHOR = 64
"""So many equal characters in a row are no coincidence."""


def unseen(shown: str, tail: str) -> Optional[str]:
    """What of ``tail``, the last of the output, comes after ``shown``; None when the two do not meet."""
    if tail.startswith(shown):
        return tail[len(shown) :]
    anchor = tail[:_ANCHOR]
    at = shown.find(anchor)
    while at >= 0:
        if tail.startswith(shown[at:]):
            return tail[len(shown) - at :]
        at = shown.find(anchor, at + 1)
    return None


@dataclass
class LogReader:
    """Reads one task's log from where it stopped last. Positions are raw bytes of one attempt's output."""

    client: Client
    task_id: str
    write: Callable[[str], None]
    attempt: Optional[int] = None
    position: int = 0
    _shown: str = field(default="", repr=False)

    def read(self, *, follow: bool) -> bool:
        """Write what is new; False when nothing was. A gap is said on standard error, never passed over."""
        query = {"attempt": self.attempt, "from": self.position or None, "follow": "true" if follow else None}
        answer = self.client.get(f"{TASKS}/{part(self.task_id)}/logs", query)
        return self.take(decode(LogText, answer.body))

    def catch_up(self) -> None:
        """Ask the node for what was printed since, and read until it has come; not for long, a task may be silent."""
        deadline, came, silent = time.monotonic() + CATCH_UP_S, False, 0
        pause = threading.Event()
        while time.monotonic() < deadline and not (came and silent > 1):
            more = self.read(follow=True)
            came, silent = came or more, 0 if more else silent + 1
            pause.wait(POLL_S)

    def take(self, log: LogText) -> bool:
        """As :meth:`read`, of an answer that is there already."""
        if log.end <= self.position:
            return False  # shown already, whatever comes with it: a loop over what is new must end
        text = log.data
        if log.start > self.position:
            say(f"[{log.start - self.position} bytes of output are gone before this line]")
        elif log.start < self.position:
            # The server may cut on whole characters only, and so begin a little earlier than asked.
            text = text.encode()[self.position - log.start :].decode("utf-8", "replace")
        self.position = max(self.position, log.end)
        self._write(text)
        return True  # also when all that came was bytes that no text holds

    def finish(self, log_tail: Optional[str]) -> None:
        """Write what only the report of the end carried: what was sent live may lack the last words."""
        tail = (log_tail or "").lstrip("\ufffd")  # the cut may have gone through a character
        rest = unseen(self._shown, tail)
        if rest is None:
            say("[output may be missing here; what follows is the end of it]")
        self._write(tail if rest is None else rest)

    def next_attempt(self, attempt: int) -> None:
        self.attempt, self.position, self._shown = attempt, 0, ""

    def _write(self, text: str) -> None:
        if text:
            self.write(text)
            self._shown = (self._shown + text)[-2 * LOG_TAIL_BYTES :]


class Watcher:
    """Follows one task to its end. ``log`` is None where only the end is waited for."""

    def __init__(
        self, client: Client, task_id: str, *, log: Optional[LogReader] = None, wait_s: Optional[float] = None
    ) -> None:
        self._client = client
        self._task_id = task_id
        self._log = log
        self._wait_s = wait_s
        self._pause = threading.Event()
        self._told: Optional[str] = None

    def until_ended(self) -> Answer:
        """The task's last state. Raises CliError: timed out after ``wait_s``, unreachable, gone."""
        return self.until(has_ended, "ended")

    def until(self, reached: Callable[[Mapping[str, Any]], bool], what: str) -> Answer:
        """The first state that has ``reached`` what is waited for, or the last one: an ended task reaches nothing
        more. ``what`` completes the sentence "it has not ...". Raises as :meth:`until_ended`."""
        begun = last_answer = time.monotonic()
        while True:
            try:
                answer = self._client.get(f"{TASKS}/{part(self._task_id)}")
                self._tell(answer.body)
                self._show_log(answer.body)
                last_answer = time.monotonic()
                if has_ended(answer.body) or reached(answer.body):
                    return answer
            except Unreachable as error:
                if time.monotonic() - last_answer > PATIENCE_S:
                    raise
                self._tell_once(f"{error.message}; still trying, the task goes on")
            if self._wait_s is not None and time.monotonic() - begun >= self._wait_s:
                raise CliError(
                    f"task {self._task_id} has not {what} within {self._wait_s:g} s; it goes on, look with "
                    f"`heterofleet tasks show {self._task_id}`",
                    ExitCode.TIMED_OUT,
                )
            self._pause.wait(POLL_S)

    def _tell(self, task: Mapping[str, Any]) -> None:
        if has_ended(task):
            return
        status, phase, node, attempt = (task.get(name) for name in ("status", "phase", "node_id", "attempt"))
        words = f"{status}" + (f" on {node}" if node else "") + (f", {phase}" if phase and phase != status else "")
        again = f" (attempt {attempt})" if isinstance(attempt, int) and attempt > 1 else ""
        self._tell_once(f"task {self._task_id}: {words}{again}")

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            say(sentence)

    def _show_log(self, task: Mapping[str, Any]) -> None:
        log, attempt = self._log, task.get("attempt")
        if log is None or not isinstance(attempt, int) or attempt < 1:
            return
        if log.attempt is None:
            log.attempt = attempt
        elif attempt != log.attempt:
            while log.read(follow=False):  # what is left of the attempt before
                pass
            log.next_attempt(attempt)
        if not has_ended(task):
            if task.get("status") not in (Status.PENDING.value, Status.SCHEDULED.value):
                log.read(follow=True)
            return
        while log.read(follow=False):
            pass
        log.finish(task.get("log_tail"))
