"""How a run is shown on standard error while it goes on: a table that moves on a terminal, else lines with the time."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, Protocol

import click

from runtime.cli.errors import MASKER
from runtime.cli.output import printable
from runtime.cli.terminal import TerminalText
from runtime.fleet.progress import Host, Progress, Stage, remaining_s
from runtime.fleet.reasons import Line

STILL_S = 60.0
"""Without a terminal, where nothing moved for so long, a line says that the run goes on."""
DRAW_S = 0.2
"""A terminal is drawn no more often."""
ROOM = 8
"""Lines of a terminal that the table of hosts leaves free."""


def say(text: str) -> None:
    """A message to the person; one who is gone is no reason to end a run."""
    with contextlib.suppress(OSError):
        click.echo(MASKER.text(text), err=True)


class Screen(Protocol):
    def lines(self, found: list[Line], progress: Progress, at: float) -> None: ...

    def output(self, text: str) -> None:
        """Ansible's own words, as they are."""

    def tick(self, progress: Progress, at: float) -> None: ...

    def close(self) -> None: ...


def duration(seconds: float | None) -> str:
    """``1m 05s``; what is not known is said so."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m {whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h {whole % 3600 // 60:02}m"


def state_line(progress: Progress, at: float) -> str:
    """Where the run stands: hosts, waves, time gone and left."""
    parts = [f"{progress.count(Stage.ENDED)} of {len(progress.hosts)} hosts ended"]
    if progress.waves:
        total = progress.waves_total
        parts.append(f"{progress.waves_done} of {total if total is not None else 'an unknown number of'} waves")
    left = remaining_s(progress, at)
    parts += [f"{duration(at)} elapsed", f"{'about ' if left is not None else ''}{duration(left)} remaining"]
    return ", ".join(parts)


def words(line: Line) -> str:
    text = printable(line.text)
    return f"{printable(line.host)}: {text}" if line.host else text


class Plain:
    """Lines with the time of day (UTC)."""

    def __init__(self) -> None:
        self._last = 0.0
        self._waves = (0, 0)

    def lines(self, found: list[Line], progress: Progress, at: float) -> None:
        for line in found:
            self._say(words(line))
        waves = (len(progress.waves), progress.waves_done)
        if waves != self._waves:
            self._waves = waves
            self._say(state_line(progress, at))
        if found:
            self._last = at

    def output(self, text: str) -> None:
        click.echo(MASKER.text(text), err=True)

    def tick(self, progress: Progress, at: float) -> None:
        if at - self._last >= STILL_S:
            self._last = at
            self._say(f"still at it: {state_line(progress, at)}")

    def close(self) -> None:
        return

    def _say(self, text: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S', time.gmtime())} {MASKER.text(text)}", err=True)


class Moving:
    """A line a host that is under way, below what has ended; on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._drawn = -DRAW_S
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        # It is drawn when something moved or time went by: no thread of its own that a fork could meet.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def lines(self, found: list[Line], progress: Progress, at: float) -> None:
        for line in found:
            host = progress.hosts.get(line.host)
            # What a host is going through stands in the table; what stays is how it ended, and the waves.
            if host is None or host.stage is Stage.ENDED:
                self._print(words(line), "red" if line.bad else "")
        if found:
            self.tick(progress, at)

    def output(self, text: str) -> None:
        harmless = TerminalText()
        self._print(harmless.harmless(MASKER.text(text)) + harmless.rest(), "dim")

    def tick(self, progress: Progress, at: float) -> None:
        if at - self._drawn >= DRAW_S:
            self._drawn = at
            self._live.update(self._table(progress, at), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _print(self, text: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(MASKER.text(text), style=style))

    def _table(self, progress: Progress, at: float) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_column(justify="right", no_wrap=True)
        shown, more = at_work(progress, max(1, self._console.height - ROOM))
        for host in shown:
            since = at - host.began if host.began is not None else None
            grid.add_row(Text(printable(host.name)), Text(MASKER.text(printable(host.phase))), Text(duration(since)))
        rest = [Text(f"and {more} more under way")] if more else []
        return Group(grid, *rest, Text(state_line(progress, at), style="bold"))


def at_work(progress: Progress, most: int) -> tuple[list[Host], int]:
    """The hosts under way that there is room for, and how many more there are."""
    found = [host for host in progress.hosts.values() if host.stage is Stage.UNDER_WAY]
    return found[:most], max(0, len(found) - most)


class Guarded:
    """A screen whose faults (nobody reads, a full disk) end the showing, and never the run."""

    def __init__(self, screen: Screen) -> None:
        self._screen: Screen | None = screen
        self.fault: Exception | None = None

    def lines(self, found: list[Line], progress: Progress, at: float) -> None:
        self._try("lines", found, progress, at)

    def output(self, text: str) -> None:
        self._try("output", text)

    def tick(self, progress: Progress, at: float) -> None:
        self._try("tick", progress, at)

    def close(self) -> None:
        self._try("close")

    def _try(self, name: str, *given: Any) -> None:
        if self._screen is None:
            return
        try:
            getattr(self._screen, name)(*given)
        except Exception as error:
            self.fault, self._screen = error, None


def choose(moving: bool) -> Guarded:
    return Guarded(Moving() if moving else Plain())
