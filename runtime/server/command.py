"""``heterofleet server``: run the control plane, look after its tokens, database and settings.

Exit codes: 0, 1 fault, 2 usage, 69 a port or the database server is not available, 73 state cannot be written,
78 configuration.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from runtime.protocol import settings as rules
from runtime.protocol import times
from runtime.server.exit_codes import EXIT_CONFIGURATION, EXIT_FAULT
from runtime.server.settings import ServerSettings, load, with_keys
from runtime.server.store.errors import StoreError

F = TypeVar("F", bound=Callable[..., Any])

OVERRIDES = ("mode", "listen", "doorbell_listen", "public_url", "state_dir", "builds_dir")


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


@click.group()
def server() -> None:
    """Run and look after the control plane on this machine.

    Exit codes: 0, 1 fault, 2 usage, 69 port or database server not available, 73 cannot write state,
    78 configuration.
    """


@server.command()
@with_settings
def run(config: Path | None, **overrides: str | None) -> NoReturn:
    """Serve until SIGTERM."""
    from runtime.protocol.masking import set_up_logging
    from runtime.server.parts import build_parts
    from runtime.server.run import Process

    loaded = _load(config, overrides)
    settings, made = _checked(lambda: with_keys(loaded.settings))
    parts = build_parts(settings)
    set_up_logging(parts.masker)
    for chatty in ("alembic", "uvicorn", "waitress"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    _warn(loaded)
    if made:
        # Shown once and kept nowhere: a dev server's key lives as long as the server.
        click.echo(f"dev mode: system key {settings.api_key}")
        sys.stdout.flush()
    sys.exit(Process(parts).run())


@server.command()
@with_settings
def migrate(config: Path | None, **overrides: str | None) -> None:
    """Bring the database to this release's schema."""
    from runtime.server.store.migrate import head

    db = _open(_load(config, overrides).settings)
    db.close()
    click.echo(f"The database is at schema {head()}.")


@server.command("config")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@with_settings
def show_config(output: str, config: Path | None, **overrides: str | None) -> None:
    """Print the effective settings and where each comes from; 78 when the server would not start with them."""
    loaded = _load(config, overrides)
    rows = rules.effective(loaded)
    if output == "json":
        click.echo(json.dumps({path: {"value": value, "origin": origin} for path, value, origin in rows}, indent=2))
    else:
        _table(["setting", "value", "origin"], [[path, json.dumps(value), origin] for path, value, origin in rows])
    _warn(loaded)
    _checked(lambda: with_keys(loaded.settings))


@server.group()
def token() -> None:
    """Operators' tokens."""


@token.command("create")
@click.option("--name", required=True, help="Whose token it is; shown in events.")
@click.option("--role", type=click.Choice(["admin", "viewer"]), required=True)
@click.option("--expires-days", type=click.FloatRange(min=0, min_open=True), help="Never, when it is left out.")
@with_settings
def create_token(
    name: str, role: str, expires_days: float | None, config: Path | None, **overrides: str | None
) -> None:
    """Make a token and print it, once, on standard output."""
    from runtime.server.services import tokens

    db = _open(_load(config, overrides).settings)
    try:
        made = tokens.create(db, name, role, times.now(), expires_days)
    except tokens.TokenExists:
        _fail(EXIT_FAULT, f"There is a token named {name!r}; revoke it first, or choose another name.")
    finally:
        db.close()
    click.echo(made)


@token.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@with_settings
def list_tokens(output: str, config: Path | None, **overrides: str | None) -> None:
    """Names, roles and expiry; never the tokens, which nobody has."""
    from runtime.server.services import tokens

    db = _open(_load(config, overrides).settings)
    found = tokens.listed(db, times.now())
    db.close()
    if output == "json":
        click.echo(json.dumps({"tokens": [asdict(info) for info in found]}, indent=2))
        return
    _table(
        ["name", "role", "created", "expires"],
        [
            [info.name, info.role, info.created_at, (info.expires_at or "never") + (" (over)" if info.expired else "")]
            for info in found
        ],
    )


@token.command("revoke")
@click.argument("name")
@with_settings
def revoke_token(name: str, config: Path | None, **overrides: str | None) -> None:
    """Refuse this token from the next request on."""
    from runtime.server.services import tokens

    db = _open(_load(config, overrides).settings)
    gone = tokens.revoke(db, name)
    db.close()
    if not gone:
        _fail(EXIT_FAULT, f"There is no token named {name!r}.")
    click.echo(f"Token {name!r} is revoked.")


def _load(config: Path | None, overrides: dict[str, str | None]) -> rules.Loaded[ServerSettings]:
    return _checked(lambda: load(config, overrides=overrides))


T = TypeVar("T")


def _checked(call: Callable[[], T]) -> T:
    try:
        return call()
    except rules.SettingsError as error:
        for fault in error.faults:
            click.echo(f"heterofleet server: {fault}", err=True)
        sys.exit(EXIT_CONFIGURATION)


def _open(settings: ServerSettings) -> Any:
    from runtime.server.store.database import Database
    from runtime.server.store.migrate import migrate as bring_up

    db = Database(settings.effective_database_url)
    try:
        bring_up(db)
        db.start()
    except StoreError as error:
        _fail(error.exit_code, str(error))
    return db


def _fail(exit_code: int, message: str) -> NoReturn:
    click.echo(f"heterofleet server: {message}", err=True)
    sys.exit(exit_code)


def _warn(loaded: rules.Loaded[ServerSettings]) -> None:
    for warning in loaded.warnings:
        click.echo(f"heterofleet server: warning: {warning}", err=True)


def _table(head: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=None)
    for row in rows:
        table.add_row(*row)
    Console(soft_wrap=True).print(table)
