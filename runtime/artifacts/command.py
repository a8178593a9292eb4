"""``heterofleet artifacts``: build the agent's files, publish them as a mirror, compare what each place hands out."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from runtime.artifacts.errors import BuildError, VerifyError
from runtime.artifacts.recipe import AGENT, SERVER
from runtime.protocol.address import AddressError, parse_server_url
from runtime.protocol.manifest import ARCHITECTURES

if TYPE_CHECKING:
    from runtime.artifacts.verify import Row

FAILED = 1
UNREACHABLE = 4

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = click.Path(file_okay=False, path_type=Path)
DIST = Path("dist/agent")
SERVER_DIST = Path("dist/server")


def _say(text: str) -> None:
    click.echo(text, err=True)


def _end(sentence: object, code: int) -> NoReturn:
    _say(f"heterofleet: {sentence}")
    sys.exit(code)


def _ends_with_words(command: F) -> F:
    """What a person can do something about ends with one sentence and exit code 1 (4: nothing answers)."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        from runtime.artifacts.folders import words

        try:
            return command(*args, **kwargs)
        except BuildError as error:
            _end(error, FAILED)
        except VerifyError as error:
            _end(error, UNREACHABLE if error.unreachable else FAILED)
        except OSError as error:
            _end(words(error), FAILED)

    return run  # type: ignore[return-value]


def _url(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """No credential goes to these addresses, so plain http is as good as any."""
    if not value:
        return None
    try:
        return parse_server_url(value, allow_plain_http=True).base
    except AddressError as error:
        raise click.BadParameter(str(error)) from error


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """An address that goes into a script."""
    from runtime.artifacts.scripts import AddressForScriptsError, address

    url = _url(context, parameter, value)
    try:
        return address(url) if url else ""
    except AddressForScriptsError as error:
        raise click.BadParameter(str(error)) from error


output = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Form of standard output."
)
dist = click.option(
    "--dist",
    type=FOLDER,
    default=DIST,
    show_default=True,
    help="The build folder; its manifest says what is right.",
)


@click.group()
def artifacts() -> None:
    """Build, publish and verify the agent's builds.

    Exit codes: 0, 1 failed or something differs, 2 usage, 4 nothing answers there.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        # An end like any other: what was begun is taken back, and programs that run for us end, too.
        signal.signal(number, lambda number, _: sys.exit(128 + number))


@artifacts.command()
@click.option("--allow-dirty", is_flag=True, help="Build although the tree differs from its commit; marked dirty.")
@click.option(
    "--server", is_flag=True, help="The control plane's files instead of the agent's: see roles/control_plane."
)
@click.option(
    "--out",
    type=FOLDER,
    help="Folder of the builds and their manifest.  [default: dist/agent, or dist/server, in the checkout]",
)
@click.option(
    "--arch",
    "arches",
    multiple=True,
    type=click.Choice(ARCHITECTURES),
    help="Only this architecture; repeat it for more.  [default: all]",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    type=click.Choice(SERVER.pythons),
    help="With --server: only for hosts with this Python; repeat it for more.  [default: all]",
)
@_ends_with_words
def build(allow_dirty: bool, server: bool, out: Path | None, arches: tuple[str, ...], pythons: tuple[str, ...]) -> None:
    """Make the agent's executable file for each architecture, or the control plane's.

    The same commit gives the same bytes everywhere. Wheels are fetched once and kept in the cache folder.
    """
    from runtime.artifacts.build import build as build_all
    from runtime.artifacts.source import checkout_root

    root = checkout_root()
    wanted = sorted(set(arches)) or list(ARCHITECTURES)
    if pythons and not server:
        raise click.UsageError("--python goes with --server: one agent's file runs on all of them")
    recipe, folder = (SERVER, SERVER_DIST) if server else (AGENT, DIST)
    if pythons:
        recipe = dataclasses.replace(recipe, pythons=tuple(one for one in recipe.pythons if one in pythons))
    build_all(root, out or root / folder, wanted, allow_dirty=allow_dirty, progress=_say, recipe=recipe)


@artifacts.command("list")
@dist
@output
@_ends_with_words
def show(dist: Path, output: str) -> None:
    """Show the builds of a folder and every native file in them, with the machine of its ELF header.

    Exit code 1 when a native file is for another machine than its build.
    """
    from runtime.artifacts.places import Folder

    folder = Folder(dist)
    manifest = folder.manifest()
    native = {arch: folder.native(arch) for arch in manifest.builds}
    rows = [(arch, part.path, part.machine, part.machine == arch) for arch in native for part in native[arch]]
    if output == "json":
        listed = [{"arch": arch, "path": path, "machine": found, "ok": ok} for arch, path, found, ok in rows]
        click.echo(json.dumps({"manifest": json.loads(manifest.text()), "native": listed}))
    else:
        mark = "-dirty" if manifest.dirty else ""
        click.echo(f"{manifest.version}/{manifest.commit}{mark} of {manifest.built_at}")
        for arch, entry in manifest.builds.items():
            click.echo(f"{arch}: {entry.file}, {entry.size} bytes, sha256 {entry.sha256}")
        click.echo()
        _table(
            ("build", "native file", "machine", "verdict"),
            [(arch, path, found, "ok" if ok else "wrong machine") for arch, path, found, ok in rows],
        )
    if not all(ok for *_, ok in rows):
        sys.exit(FAILED)


@artifacts.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--from", "builds", type=FOLDER, default=DIST, show_default=True, help="The build folder.")
@click.option(
    "--server",
    metavar="URL",
    callback=_address,
    help="The control plane that the all-in-one script uses; without it the script asks for --server.",
)
@click.option(
    "--mirror",
    metavar="URL",
    callback=_address,
    help="Where DIR will be reached; without it the script fetches builds from the control plane.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, say what would change, change nothing.")
@output
@_ends_with_words
def publish(folder: Path, builds: Path, server: str, mirror: str, dry_run: bool, output: str) -> None:
    """Write the static mirror into DIR: builds, their manifest, and the all-in-one script.

    DIR may be handed out by any web server, also while this runs. Publishing the same again changes nothing.
    """
    from runtime.artifacts.publish import publish as publish_tree

    published = publish_tree(builds, folder, progress=_say, server_url=server, mirror_url=mirror, dry_run=dry_run)
    manifest = published.manifest
    for arch in ARCHITECTURES:
        if arch not in manifest.builds:
            _say(f"heterofleet: warning: {builds} has no build for {arch}, so nodes of that kind find none")
    if output == "json":
        files = [dataclasses.asdict(change) for change in published.changes]
        document = {"folder": str(folder), "dry_run": dry_run, "changed": published.changed, "files": files}
        click.echo(json.dumps({**document, "manifest": json.loads(manifest.text())}))
        return
    _table(
        ("file", "would" if dry_run else "done", "size", "sha256"),
        [(one.path, one.action, str(one.size or "-"), one.sha256 or "-") for one in published.changes],
    )


@artifacts.command()
@dist
@click.option("--server", metavar="URL", envvar="HETEROFLEET_SERVER_URL", callback=_url, help="A control plane.")
@click.option("--mirror", metavar="URL", envvar="HETEROFLEET_MIRROR_URL", callback=_url, help="A static mirror.")
@click.option("--ca-file", type=click.Path(dir_okay=False, exists=True), help="Certificates to trust.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="How long all of it may take.",
)
@output
@_ends_with_words
def verify(
    dist: Path, server: str | None, mirror: str | None, ca_file: str | None, deadline: float, output: str
) -> None:
    """Compare md5 and sha256 of both architectures in the build folder, a control plane and a mirror.

    Exit code 1 when something differs or is missing, 4 when a place does not answer.
    """
    from runtime.artifacts.places import Folder, Place, Web
    from runtime.artifacts.verify import verify as compare

    places: list[Place] = [Folder(dist)]
    places += [Web(url, by_name, ca_file) for url, by_name in ((server, False), (mirror, True)) if url]
    rows = compare(places, deadline_s=deadline)
    if output == "json":
        files = [_shown(row, but=("unreachable",)) for row in rows if row.arch is not None]
        scripts = [_shown(row, but=("arch", "unreachable")) for row in rows if row.arch is None]
        click.echo(json.dumps({"files": files, "scripts": scripts}))
    else:
        _table(
            ("where", "what", "size", "md5", "sha256", "verdict"),
            [
                (
                    row.place,
                    row.arch or "script",
                    str(row.size or "-"),
                    row.md5 or "-",
                    row.sha256 or "-",
                    ("no answer" if row.unreachable else "wrong") if row.problem else "ok",
                )
                for row in rows
            ],
        )
    for row in rows:
        if row.problem:
            _say(f"heterofleet: {row.place} {row.arch or 'script'}: {row.problem}")
    if any(row.problem and not row.unreachable for row in rows):
        sys.exit(FAILED)
    if any(row.unreachable for row in rows):
        sys.exit(UNREACHABLE)


def _shown(row: Row, but: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(row).items() if name not in but}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Only the last column is folded: a checksum is whole or useless."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for name, width in zip(head[:-1], widths[:-1], strict=True):
        table.add_column(name, no_wrap=True, min_width=width)
    table.add_column(head[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(file=sys.stdout, highlight=False, markup=False)
    room = console.width if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "200"))
    console.width = max(room, sum(widths[:-1]) + 2 * len(widths) + min(widths[-1], 40))
    console.print(table)
