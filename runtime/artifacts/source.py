"""The source tree that builds are made from: its version triple, whether it is dirty, and the agent's files."""

from __future__ import annotations

import configparser
import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from runtime.artifacts.errors import BuildError
from runtime.protocol.build import Build

AGENT_PATHS = ("runtime/__init__.py", "runtime/protocol", "runtime/agent")
"""What of the tree goes into the agent's file."""


@dataclass(frozen=True)
class Source:
    """A checkout. ``changes`` are the paths that differ from the commit, as git names them."""

    root: Path
    build: Build
    epoch: int
    changes: tuple[str, ...]
    files: tuple[str, ...]

    def path(self, name: str) -> Path:
        return self.root / name


def checkout_root() -> Path:
    """The checkout that the running program lies in. Raises BuildError when it is an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "setup.cfg").is_file():
        raise BuildError(
            f"builds are made from a checkout of the sources, and {root} is none: "
            "run `heterofleet artifacts build` from the virtual environment of a checkout (`make venv`)"
        )
    return root


def read_source(root: Path) -> Source:
    """Look at the checkout in ``root``. Raises BuildError: no git, no commit, no version."""
    commit, seconds = _git(root, "show", "--no-patch", "--format=%H %ct", "HEAD").split()
    changes = [line for line in _git(root, "status", "--porcelain=v1", "--untracked-files=normal").splitlines() if line]
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *AGENT_PATHS)
    files = sorted({name for name in listed.split("\0") if name and (root / name).is_file()})
    if not files:
        raise BuildError(f"{root} has no {AGENT_PATHS[-1]}: nothing to build")
    built_at = datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Source(
        root=root,
        build=Build(_version(root), commit[:12], built_at, bool(changes)),
        epoch=int(seconds),
        changes=tuple(changes),
        files=tuple(files),
    )


def _version(root: Path) -> str:
    config = configparser.ConfigParser()
    config.read_string((root / "setup.cfg").read_text("utf-8"))
    return config["metadata"]["version"].strip()


def _git(root: Path, *arguments: str) -> str:
    """What git says. Without optional locks, so that a build never stands in the way of a commit."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise BuildError("git is not installed: a build carries its commit, so it needs git") from error
    if done.returncode != 0:
        raise BuildError(f"git cannot read {root} (a build carries its commit): {done.stderr.strip()}")
    return done.stdout
