"""``heterofleet server``: run the control plane, look after its tokens, database and settings.

Exit codes: 0, 1 fault, 2 usage, 69 a port or the database server is not available, 73 state cannot be written,
78 configuration.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click

from runtime.protocol import settings as rules
from runtime.protocol import times
from runtime.server.command_line import checked, fail, loaded_settings, open_database, table, warn, with_settings
from runtime.server.copy_command import backup, migrate, restore
from runtime.server.exit_codes import EXIT_FAULT
from runtime.server.restore_command import accept_restore
from runtime.server.settings import key_warnings, with_keys


@click.group()
def server() -> None:
    """Run and look after the control plane on this machine.

    Exit codes: 0, 1 fault, 2 usage, 69 port or database server not available, 73 cannot write state,
    78 configuration.
    """


@server.command()
@click.option("-v", "--verbose", count=True, help="Log details; twice: those of the libraries too.")
@with_settings
def run(verbose: int, config: Path | None, **overrides: str | None) -> NoReturn:
    """Serve until SIGTERM."""
    from runtime.protocol.masking import set_up_logging
    from runtime.server.parts import build_parts
    from runtime.server.run import Process

    loaded = loaded_settings(config, overrides)
    settings, made = checked(lambda: with_keys(loaded.settings))
    parts = build_parts(settings)
    set_up_logging(parts.masker, verbose)
    warn(loaded)
    for warning in key_warnings(settings):
        click.echo(f"heterofleet server: warning: {warning}", err=True)
    if made:
        # Shown once and kept nowhere: a dev server's key lives as long as the server.
        click.echo(f"dev mode: system key {settings.api_key}")
        sys.stdout.flush()
    sys.exit(Process(parts).run())


@server.command("config")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@with_settings
def show_config(output: str, config: Path | None, **overrides: str | None) -> None:
    """Print the effective settings and where each comes from; 78 when the server would not start with them."""
    loaded = loaded_settings(config, overrides)
    rows = rules.effective(loaded)
    if output == "json":
        click.echo(json.dumps({path: {"value": value, "origin": origin} for path, value, origin in rows}, indent=2))
    else:
        table(["setting", "value", "origin"], [[path, json.dumps(value), origin] for path, value, origin in rows])
    warn(loaded)
    checked(lambda: with_keys(loaded.settings))


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

    db = open_database(loaded_settings(config, overrides).settings)
    try:
        made = tokens.create(db, name, role, times.now(), expires_days)
    except tokens.TokenExists:
        fail(EXIT_FAULT, f"There is a token named {name!r}; revoke it first, or choose another name.")
    finally:
        db.close()
    click.echo(made)


@token.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@with_settings
def list_tokens(output: str, config: Path | None, **overrides: str | None) -> None:
    """Names, roles and expiry; never the tokens, which nobody has."""
    from runtime.server.services import tokens

    db = open_database(loaded_settings(config, overrides).settings)
    found = tokens.listed(db, times.now())
    db.close()
    if output == "json":
        click.echo(json.dumps({"tokens": [asdict(info) for info in found]}, indent=2))
        return
    table(
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

    db = open_database(loaded_settings(config, overrides).settings)
    gone = tokens.revoke(db, name)
    db.close()
    if not gone:
        fail(EXIT_FAULT, f"There is no token named {name!r}.")
    click.echo(f"Token {name!r} is revoked.")


for _command in (migrate, backup, restore, accept_restore):
    server.add_command(_command)
