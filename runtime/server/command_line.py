"""What the commands of ``heterofleet server`` share: their options, their settings, the database, how they fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from runtime.protocol import settings as rules
from runtime.server.exit_codes import EXIT_CONFIGURATION
from runtime.server.settings import ServerSettings, load
from runtime.server.store.errors import StoreError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

OVERRIDES = ("mode", "listen", "doorbell_listen", "mirror_listen", "public_url", "state_dir", "builds_dir")


def with_settings(command: F) -> F:
    """The options that every subcommand shares."""
    options = [
        click.option(
            "--config",
            "config",
            type=click.Path(path_type=Path, dir_okay=False),
            help="The settings file; /etc/heterofleet/server.yaml where it exists.",
        ),
        *(
            click.option(f"--{name.replace('_', '-')}", name, help=f"Instead of the setting {name}.")
            for name in OVERRIDES
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def loaded_settings(config: Path | None, overrides: dict[str, str | None]) -> rules.Loaded[ServerSettings]:
    return checked(lambda: load(config, overrides=overrides))


def checked(call: Callable[[], T]) -> T:
    try:
        return call()
    except rules.SettingsError as error:
        for fault in error.faults:
            click.echo(f"heterofleet server: {fault}", err=True)
        sys.exit(EXIT_CONFIGURATION)


def open_database(settings: ServerSettings) -> Any:
    from runtime.server.store.database import Database
    from runtime.server.store.migrate import migrate as bring_up

    db = Database(settings.effective_database_url)
    try:
        bring_up(db)
        db.start()
    except StoreError as error:
        fail(error.exit_code, str(error))
    return db


def fail(exit_code: int, message: str) -> NoReturn:
    click.echo(f"heterofleet server: {message}", err=True)
    sys.exit(exit_code)


def warn(loaded: rules.Loaded[ServerSettings]) -> None:
    for warning in loaded.warnings:
        click.echo(f"heterofleet server: warning: {warning}", err=True)


PIPE_WIDTH = 10_000
"""Nobody reads a pipe's lines folded: ``grep`` wants a setting and its value in one."""


def table(head: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")  # never an ellipsis: a path is whole or useless
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
