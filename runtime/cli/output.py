"""What goes to standard output, and in which form; everything said beside it goes to standard error.

``json`` is the API's body as it came and nothing else; ``yaml`` the same value; ``table`` is for people and
fits 80 columns where there is no terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import click
import yaml

from runtime.cli.client import Answer

PLAIN_COLUMNS = 80


@dataclass(frozen=True)
class Column:
    """``keep`` columns are never cut: ids that are copied into the next command. ``show`` makes the text."""

    title: str
    show: Callable[[Any], str]
    keep: bool = False
    right: bool = False


def say(message: str) -> None:
    """A message to the person, on standard error."""
    click.echo(message, err=True)


def printable(text: str) -> str:
    """``text`` without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" if ord(c) < 256 else "\ufffd" for c in text)


def emit(answer: Answer, form: str, table: Callable[[Any], None]) -> None:
    """Print an answer in the form asked for; ``table`` gets its body."""
    if form == "json":
        click.echo(answer.text.rstrip("\n")) if answer.text else None
    elif form == "yaml":
        if answer.body is not None:
            click.echo(yaml.safe_dump(answer.body, sort_keys=False, allow_unicode=True).rstrip("\n"))
    elif answer.body is not None:
        table(answer.body)


def print_table(columns: Sequence[Column], rows: Iterable[Any], nothing: str) -> None:
    """One line a row; ``nothing`` is said (on standard error) when there are none."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    if not rows:
        say(nothing)
        return
    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            no_wrap=True,
            overflow="ignore" if column.keep else "ellipsis",
            min_width=None if not column.keep else max(len(column.show(row)) for row in rows),
            justify="right" if column.right else "left",
        )
    for row in rows:
        table.add_row(*(Text(printable(column.show(row))) for column in columns))
    _console().print(table)


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
    _console().print(grid)


def _console() -> Any:
    from rich.console import Console

    width = None if sys.stdout.isatty() else PLAIN_COLUMNS
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)
