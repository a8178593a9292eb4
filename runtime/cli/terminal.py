"""A task's output on a person's terminal: what it prints must not command the terminal.

Into a pipe or a file output goes as it is. On a terminal colours, line breaks and carriage returns (progress bars) do
what they say; every other control character is shown instead of obeyed: a title, the clipboard, a question to the
terminal, text that runs backwards.
"""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import Optional

import click

from runtime.cli.output import printable

_KEPT = re.compile(r"\x1b\[[0-9;:]{0,64}[mK]|[\n\r\t]")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_OPEN = re.compile(r"\x1b(\[[0-9;:]{0,64})?\Z")
"""A sequence that may go on in the next piece."""


class TerminalText:
    """Makes text harmless piece by piece; a sequence may be cut anywhere."""

    def __init__(self) -> None:
        self._begun = ""

    def harmless(self, text: str) -> str:
        text = self._begun + text
        cut = _OPEN.search(text)
        self._begun = text[cut.start() :] if cut else ""
        return _shown(text[: cut.start()] if cut else text)

    def rest(self) -> str:
        """What was held back at the end of the last piece."""
        text, self._begun = self._begun, ""
        return _shown(text)


class LogOutput:
    """Where a log goes: standard output, or with ``err`` standard error; harmless where that is a terminal."""

    def __init__(self, err: bool = False) -> None:
        self._err = err
        self._text = TerminalText() if (sys.stderr if err else sys.stdout).isatty() else None

    def write(self, text: str) -> None:
        # As it is, also into a pipe, where click would take the colours out.
        click.echo(text if self._text is None else self._text.harmless(text), nl=False, err=self._err, color=True)

    def __enter__(self) -> LogOutput:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: object, trace: Optional[TracebackType]) -> None:
        if self._text is not None and kind is None:
            click.echo(self._text.rest(), nl=False, err=self._err, color=True)


def _shown(text: str) -> str:
    parts, at = [], 0
    for kept in _KEPT.finditer(text):
        parts += [_UNSAFE.sub(_as_text, text[at : kept.start()]), kept.group()]
        at = kept.end()
    return "".join([*parts, _UNSAFE.sub(_as_text, text[at:])])


def _as_text(found: re.Match[str]) -> str:
    return printable(found.group())
