"""``heterofleet server backup|restore``, and how ``migrate`` is rehearsed: see ``store.copies``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from runtime.server.command_line import fail, loaded_settings, open_database, with_settings
from runtime.server.store.errors import StoreError

output = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--rehearse", is_flag=True, help="Migrate a copy and throw it away; the database stays as it is.")
@click.option("--show", is_flag=True, help="Say what is in the database; change nothing.")
@output
@with_settings
def migrate(rehearse: bool, show: bool, output: str, config: Path | None, **overrides: str | None) -> None:
    """Bring the database to this release's schema."""
    from runtime.server.store import copies
    from runtime.server.store.migrate import head

    if rehearse and show:
        raise click.UsageError("--rehearse or --show, not both")
    settings = loaded_settings(config, overrides).settings
    if not rehearse and not show:
        open_database(settings).close()
        _tell(output, {"schema": head()}, f"The database is at schema {head()}.")
        return
    db = _database(settings)
    try:
        if show:
            found = copies.state(db)
            words = "is empty" if found.schema is None else f"is at schema {found.schema}, revision {found.revision}"
            _tell(output, asdict(found), f"The database {words}; this release has schema {found.head}.")
            return
        tried = copies.rehearse(db)
    except StoreError as error:
        fail(error.exit_code, str(error))
    except Exception as error:
        # A migration of ours that this database does not take: told in one line, whatever it is.
        fail(1, f"The migration of a copy failed, the database is as it was: {_line(error)}")
    finally:
        db.close()
    if tried is None:
        _tell(output, {"before": None, "after": head(), "seconds": 0, "size": 0}, "The database is empty.")
        return
    text = f"A copy went from schema {tried.before} to {tried.after} in {tried.seconds:g} s; nothing was changed."
    _tell(output, asdict(tried), text)


@click.command()
@click.argument("file", type=FILE)
@output
@with_settings
def backup(file: Path, output: str, config: Path | None, **overrides: str | None) -> None:
    """Write a copy of the database to FILE (0600); the server may go on meanwhile.

    Keep secret.key and server.yaml with it: the copy holds sealed values, and not the key that opens them.
    """
    from runtime.server.store import copies

    settings = loaded_settings(config, overrides).settings
    db = _database(settings)
    try:
        found = copies.backup(db, file)
    except StoreError as error:
        fail(error.exit_code, str(error))
    finally:
        db.close()
    document = {"file": str(file), "secret_key_file": str(settings.secret_key_path), **asdict(found)}
    _tell(
        output,
        document,
        f"{file} holds schema {found.schema}, revision {found.revision}; keep {settings.secret_key_path} with it.",
    )


@click.command()
@click.argument("file", type=FILE)
@output
@with_settings
def restore(file: Path, output: str, config: Path | None, **overrides: str | None) -> None:
    """Put the copy FILE (of `backup`) in the database's place. Stop every server first.

    Agents that have seen more than the copy knows make the server say `rolled_back`: see `accept-restore`.
    """
    from runtime.server.store import copies

    db = _database(loaded_settings(config, overrides).settings)
    try:
        found = copies.restore(db, file)
    except StoreError as error:
        fail(error.exit_code, str(error))
    finally:
        db.close()
    _tell(output, asdict(found), f"The database is at schema {found.schema}, revision {found.revision}.")


def _database(settings: Any) -> Any:
    from runtime.server.store.database import Database

    return Database(settings.effective_database_url)


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _tell(output: str, document: dict[str, Any], text: str) -> None:
    click.echo(json.dumps(document) if output == "json" else text)
