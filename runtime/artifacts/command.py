"""``heterofleet artifacts``: build the agent's files, and compare what each place hands out."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from runtime.artifacts.errors import BuildError, VerifyError
from runtime.protocol.manifest import ARCHITECTURES

FAILED = 1
UNREACHABLE = 4


def _say(text: str) -> None:
    click.echo(text, err=True)


def _end(error: Exception, code: int) -> NoReturn:
    _say(f"heterofleet: {error}")
    sys.exit(code)


@click.group()
def artifacts() -> None:
    """Build and verify the agent's builds."""


@artifacts.command()
@click.option("--allow-dirty", is_flag=True, help="Build although the tree differs from its commit; marked dirty.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the builds and their manifest.  [default: dist/agent in the checkout]",
)
@click.option(
    "--arch",
    "arches",
    multiple=True,
    type=click.Choice(ARCHITECTURES),
    help="Only this architecture; repeat it for more.  [default: all]",
)
def build(allow_dirty: bool, out: Path | None, arches: tuple[str, ...]) -> None:
    """Make the agent's executable file for each architecture.

    The same commit gives the same bytes everywhere. Wheels are fetched once and kept in the cache folder.
    """
    from runtime.artifacts.build import build as build_agent
    from runtime.artifacts.source import checkout_root

    try:
        root = checkout_root()
        wanted = sorted(set(arches)) or list(ARCHITECTURES)
        build_agent(root, out or root / "dist" / "agent", wanted, allow_dirty=allow_dirty, progress=_say)
    except BuildError as error:
        _end(error, FAILED)


@artifacts.command()
@click.option(
    "--dist",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dist/agent"),
    show_default=True,
    help="The build folder; its manifest says what is right.",
)
@click.option("--server", metavar="URL", envvar="HETEROFLEET_SERVER_URL", help="A control plane to compare with.")
@click.option("--mirror", metavar="URL", help="A static mirror to compare with.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Form of standard output.")
def verify(dist: Path, server: str | None, mirror: str | None, output: str) -> None:
    """Compare md5 and sha256 of both architectures in each place. Exit code 1 when one differs."""
    from runtime.artifacts.verify import Folder, Place, Web
    from runtime.artifacts.verify import verify as compare

    places: list[Place] = [Folder(dist)]
    places += [Web(url.rstrip("/"), by_name) for url, by_name in ((server, False), (mirror, True)) if url]
    try:
        rows = compare(places)
    except VerifyError as error:
        _end(error, UNREACHABLE if error.unreachable else FAILED)
    if output == "json":
        click.echo(json.dumps({"files": [dataclasses.asdict(row) for row in rows]}))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("where", "arch", "size", "md5", "sha256", "verdict", box=None, pad_edge=False)
        for row in rows:
            verdict = row.problem or "as the manifest says"
            table.add_row(row.place, row.arch, str(row.size or "-"), row.md5 or "-", row.sha256 or "-", verdict)
        width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "200"))
        Console(file=sys.stdout, highlight=False, width=width).print(table)
    if any(row.problem for row in rows):
        sys.exit(FAILED)
