"""The source tree that builds are made from: its version triple, whether it is dirty, and what goes into builds.

A clean tree is read from its commit, not from its files: what git was told to overlook there (line ends, files
marked as unchanged) cannot make another build than the commit says. A dirty tree is read from its files.
"""

from __future__ import annotations

import configparser
import filecmp
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from runtime.artifacts.children import last_lines, run
from runtime.artifacts.errors import BuildError
from runtime.artifacts.recipe import AGENT, Recipe
from runtime.protocol.build import Build

LAUNCHER = "runtime/artifacts/launcher.sh"
SETUP = "setup.cfg"

DEADLINE_S = 60.0
"""For each call of git."""


@dataclass(frozen=True)
class Source:
    """A checkout. ``changes`` are the paths that differ from the commit, as git names them.

    ``files``: path -> content of what goes into the build; ``launcher`` (empty: none) and ``lock``: what it is made
    with. ``epoch``: the commit's time in seconds.
    """

    build: Build
    epoch: int
    changes: tuple[str, ...]
    files: dict[str, bytes]
    launcher: bytes
    lock: str
    recipe: Recipe = AGENT


def checkout_root(start: Path | None = None) -> Path:
    """The checkout that the running program lies in, else the one around ``start`` (the working directory).

    An installed program may build a checkout that has the very same maker: another one would make other bytes of the
    same commit. Raises BuildError.
    """
    own = Path(__file__).resolve().parent
    if (own.parents[1] / SETUP).is_file():
        return own.parents[1]
    here = (start or Path.cwd()).resolve()
    for root in (here, *here.parents):
        if (root / SETUP).is_file() and (root / LAUNCHER).is_file():
            break
    else:
        raise BuildError(
            f"builds are made from a checkout of the sources, and {here} is in none: "
            "run `heterofleet artifacts build` in the checkout that was installed"
        )
    makers = sorted(path.name for path in own.iterdir() if path.is_file())
    _, differ, missing = filecmp.cmpfiles(own, (root / LAUNCHER).parent, makers, shallow=False)
    if differ or missing:
        raise BuildError(
            f"{root} and the installed heterofleet ({own}) make builds in different ways "
            f"({', '.join(differ + missing)}): install this checkout first, pip install '.[server,artifacts]'"
        )
    return root


def read_source(root: Path, recipe: Recipe = AGENT) -> Source:
    """Look at the checkout in ``root`` for what ``recipe`` takes of it.

    Raises BuildError: no git, no commit of its own, no version.
    """
    git = functools.partial(_git, root)
    top = git("rev-parse", "--show-toplevel").decode().rstrip("\n")
    if Path(top).resolve() != root.resolve():
        raise BuildError(f"{root} is no checkout of its own but lies in {top}: its commit would say nothing about it")
    commit, seconds = git("show", "--no-patch", "--format=%H %ct", "HEAD").decode().split()
    status = git("status", "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=none")
    changes = tuple(_changes(status.decode("utf-8", "replace")))
    beside = [recipe.lock, SETUP, *([recipe.launcher] if recipe.launcher else [])]
    if changes:
        listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *recipe.paths)
        names = sorted({name for name in listed.decode().split("\0") if name and os.path.lexists(root / name)})
        contents = {name: _on_disk(root, name) for name in [*names, *beside]}
    else:
        contents = _committed(root, commit, [*recipe.paths, *beside])
    files = {name: content for name, content in sorted(contents.items()) if name.startswith(recipe.paths)}
    if not any(name.startswith(recipe.heart) for name in files):
        raise BuildError(f"{root} has no {recipe.heart.rstrip('/')}: nothing to build")
    epoch = int(seconds)
    built_at = datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        config = configparser.ConfigParser()
        config.read_string(contents[SETUP].decode())
        version = config["metadata"]["version"].strip()
        launcher = contents[recipe.launcher] if recipe.launcher else b""
        lock = contents[recipe.lock].decode()
    except (KeyError, configparser.Error, UnicodeDecodeError) as error:
        raise BuildError(f"{root} is not whole: {error}") from error
    return Source(Build(version, commit[:12], built_at, bool(changes)), epoch, changes, files, launcher, lock, recipe)


def _changes(status: str) -> Iterator[str]:
    """``git status -z``: ``XY path``, and after a renamed one the path that it had."""
    entries = iter(status.split("\0"))
    for entry in entries:
        if not entry:
            continue
        yield entry
        if "R" in entry[:2] or "C" in entry[:2]:
            next(entries, None)


def _on_disk(root: Path, name: str) -> bytes:
    path = root / name
    if path.is_symlink():
        raise BuildError(f"{path} is a link: a build takes ordinary files only")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BuildError(f"{path}: {error.strerror}") from error


def _committed(root: Path, commit: str, wanted: Sequence[str]) -> dict[str, bytes]:
    """Path -> content of what a build needs, in ``commit``."""
    listed = _git(root, "ls-tree", "-r", "-z", commit, "--", *wanted).decode()
    blobs = {}
    for entry in filter(None, listed.split("\0")):
        about, _, name = entry.partition("\t")
        mode, kind, blob = about.split()
        if kind != "blob" or mode == "120000":
            raise BuildError(f"{name} is a link or another checkout: a build takes ordinary files only")
        blobs[name] = blob
    answer = _git(root, "cat-file", "--batch", given="".join(f"{blob}\n" for blob in blobs.values()).encode())
    contents = {}
    for name in blobs:
        head, _, rest = answer.partition(b"\n")  # "<blob> blob <size>", the content, a newline
        size = int(head.split()[2])
        contents[name], answer = rest[:size], rest[size + 1 :]
    return contents


def _git(root: Path, *arguments: str, given: bytes = b"") -> bytes:
    """What git says. Without optional locks, so that a build never stands in the way of a commit."""
    command = ["git", "--no-optional-locks", "--no-replace-objects", "-C", str(root), *arguments]
    # What a hook's git says of its own repository must not lead to that one.
    env = {name: value for name, value in os.environ.items() if name not in _LOCAL} | {"LC_ALL": "C"}
    try:
        done = run(command, f"git {arguments[0]} in {root}", deadline_s=DEADLINE_S, env=env, given=given)
    except FileNotFoundError as error:
        raise BuildError("git is not installed: a build carries its commit, so it needs git") from error
    if done.returncode != 0:
        raise BuildError(f"git cannot read {root} (a build carries its commit): {last_lines(done.stderr, 4)}")
    return done.stdout


_LOCAL = frozenset(
    f"GIT_{name}"
    for name in (
        *("DIR", "WORK_TREE", "INDEX_FILE", "OBJECT_DIRECTORY", "ALTERNATE_OBJECT_DIRECTORIES", "COMMON_DIR"),
        *("NAMESPACE", "PREFIX", "GRAFT_FILE", "SHALLOW_FILE", "CEILING_DIRECTORIES"),
    )
)
