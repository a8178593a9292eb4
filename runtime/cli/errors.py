"""How a command ends: the exit codes, and the one error that carries them.

Every error says what was found, what is wanted and what to do, on standard error.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import IO, Any, Optional

import click

from runtime.protocol.masking import Masker
from runtime.protocol.problems import ProblemDocument

MASKER = Masker()
"""Knows the token and the proxy's login; what goes to standard error passes here."""


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_AUTHORISED = 3
    UNREACHABLE = 4
    NOT_FOUND = 5
    REFUSED = 6
    TIMED_OUT = 7
    DECLINED = 8
    ENDED_WITHOUT_CODE = 70
    """``tasks run --follow``: the task ended without an exit code of its own."""


class CliError(click.ClickException):
    """A command could not do what it was asked for."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click's own subclasses do the same

    def show(self, file: Optional[IO[Any]] = None) -> None:
        click.echo(f"heterofleet: {MASKER.text(self.message)}", file=file or sys.stderr)


class Unreachable(CliError):
    """No usable answer came: no connection, or the answer of something that is not ready or not ours.

    ``sent``: the request may have arrived, so whether it took effect is not known. ``passing``: another try a
    moment later may fare better.
    """

    def __init__(self, message: str, *, sent: bool = False, passing: bool = True) -> None:
        super().__init__(message, ExitCode.UNREACHABLE)
        self.sent = sent
        self.passing = passing


class Refusal(CliError):
    """The control plane answered with a problem document."""

    def __init__(self, problem: ProblemDocument) -> None:
        super().__init__(_sentence(problem), exit_code_of(problem))
        self.problem = problem


_ADVICE = {
    "bad_token": "give a valid operator token (--token-file, HETEROFLEET_TOKEN); on the control plane's machine "
    "`heterofleet server token create` makes one",
    "agent_key_not_allowed": "this call wants an operator token, not the system key of the agents",
    "role_not_allowed": "this call wants a token of role admin",
    "route_not_found": "this control plane does not have this call; it is older than this command line, or "
    "server_url has a path that does not belong there",
}


def exit_code_of(problem: ProblemDocument) -> ExitCode:
    """The table of exit codes for what the control plane refused."""
    if problem.code == "route_not_found":
        return ExitCode.FAILED
    if problem.status in (401, 403):
        return ExitCode.NOT_AUTHORISED
    if problem.status == 404:
        return ExitCode.NOT_FOUND
    if problem.status == 503:
        return ExitCode.UNREACHABLE
    if 400 <= problem.status < 500:
        return ExitCode.REFUSED
    return ExitCode.FAILED


def _sentence(problem: ProblemDocument) -> str:
    lines = [f"{problem.detail or problem.title} ({problem.code}, HTTP {problem.status})"]
    errors = problem.members.get("errors")
    if isinstance(errors, list) and len(errors) > 1:
        lines[0] = f"{len(errors)} things are wrong ({problem.code}, HTTP {problem.status}):"
        lines.extend(
            f"  {fault.get('path')}: found {fault.get('found')}, wanted {fault.get('wanted')}"
            for fault in errors
            if isinstance(fault, dict)
        )
    if problem.code in _ADVICE:
        lines.append(_ADVICE[problem.code])
    return "\n".join(lines)
