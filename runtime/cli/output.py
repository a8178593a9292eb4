"""What goes to standard output, and in which form; everything said beside it goes to standard error.

``json`` is the API's body as it came and nothing else; ``yaml`` the same value; ``table`` is for people: it fits
the terminal, and where there is none (a pipe, a file) nothing is cut, one line a row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Literal, Optional

import click
import yaml

from runtime.cli.client import Answer
from runtime.cli.errors import MASKER

UNBOUNDED = 100_000
NARROWEST = 6
GAP = 2


@dataclass(frozen=True)
class Column:
    """``show`` makes the text. ``keep`` columns are never cut: ids that are copied into the next command.
    ``wrap`` columns go on below instead of being cut: sentences."""

    title: str
    show: Callable[[Any], str]
    keep: bool = False
    right: bool = False
    wrap: bool = False


def say(message: str) -> None:
    """A message to the person, on standard error."""
    click.echo(MASKER.text(message), err=True)


def printable(text: str) -> str:
    """``text`` without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" if ord(c) < 256 else "\ufffd" for c in text)


def emit(answer: Answer, form: str, table: Callable[[Any], None]) -> None:
    """Print an answer in the form asked for; ``table`` gets its body."""
    if form == "json":
        if answer.text:
            click.echo(answer.text.rstrip("\n"))
    elif form == "yaml":
        if answer.body is not None:
            click.echo(yaml.safe_dump(answer.body, sort_keys=False, allow_unicode=True).rstrip("\n"))
    elif answer.body is not None:
        table(answer.body)


def fit(wanted: Sequence[int], keep: Sequence[bool], room: int) -> list[int]:
    """Widths of columns within ``room``: the widest that may be cut gives way first, none below NARROWEST.

    Columns that are kept whole may leave no room; then the table is as wide as they need.
    """
    widths = list(wanted)
    while sum(widths) > room:
        cut = [n for n, width in enumerate(widths) if not keep[n] and width > NARROWEST]
        if not cut:
            break
        widths[max(cut, key=lambda n: widths[n])] -= 1
    return widths


def print_table(columns: Sequence[Column], rows: Iterable[Any], nothing: str) -> None:
    """One line a row but for columns that wrap; ``nothing`` is said (on standard error) when there are none."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(column.show(row)) for column in columns] for row in rows]
    if not cells:
        say(nothing)
        return
    wanted = [max(cell_len(text) for text in (column.title, *texts)) for column, *texts in zip(columns, *cells)]
    console, gaps = _console(), GAP * (len(columns) - 1)
    widths = fit(wanted, [column.keep for column in columns], console.width - gaps)
    console.width = max(console.width, sum(widths) + gaps)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column, width in zip(columns, widths):
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(
            column.title,
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
            width=width,
            justify=justify,
        )
    for texts in cells:
        table.add_row(*(Text(text) for text in texts))
    _print(console, table)


def print_fields(pairs: Iterable[tuple[str, Optional[str]]]) -> None:
    """``name: value`` lines, aligned, long values wrapped under themselves; a value of None leaves its line out."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            text = "\n".join(printable(line) for line in value.splitlines()) or value
            grid.add_row(name, Text(text))
    _print(_console(), grid)


def _print(console: Any, table: Any) -> None:
    """Print without the blanks that fill the last column up."""
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _console() -> Any:
    from rich.console import Console

    width = None if sys.stdout.isatty() else UNBOUNDED
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)
