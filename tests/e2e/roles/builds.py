"""Agent builds of this checkout's sources, made once and kept in the lab's cache for all tests of roles.

The cache goes by the content of what builds are made from, not by the commit: the sources are put into a checkout of
their own, whose commit has a fixed time. Folders of the cache are shared: copy what you want to change.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.artifacts.build import build
from runtime.protocol.manifest import ARCHITECTURES, read_manifest
from tests.integration.distribution.updating import _RUN, KINDS
from tests.lab import places

ROOT = Path(__file__).resolve().parents[3]
INPUTS = (
    "setup.cfg",
    "runtime/__init__.py",
    "runtime/protocol",
    "runtime/agent",
    "runtime/artifacts/launcher.sh",
    "runtime/artifacts/agent-requirements.txt",
)
KEPT = 12
"""Checkouts with their builds, by their last use."""


def _files() -> list[Path]:
    found: list[Path] = []
    for name in INPUTS:
        place = ROOT / name
        found += [place] if place.is_file() else [path for path in sorted(place.rglob("*")) if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts and path.name != "_build.json"]


def _commit(tree: Path, message: str) -> None:
    when = "2026-01-02T03:04:05Z"
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", message]):
        subprocess.run(["git", "-C", tree, *identity, *words], check=True, capture_output=True, env=environ)


class Builds:
    """Each kind is made when it is first asked for; other test sessions on this machine wait for it and share it."""

    def __init__(self) -> None:
        contents = {str(path.relative_to(ROOT)): path.read_bytes() for path in _files()}
        digest = hashlib.sha256()
        for name, content in contents.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        self._contents = contents
        self._base = places.cache() / "role-builds"
        self.folder = self._base / digest.hexdigest()[:16]

    @property
    def first(self) -> Path:
        """A folder with good builds of both architectures and their manifest."""
        return self._made("first", "", ARCHITECTURES)

    @property
    def newer(self) -> Path:
        """As ``first``, of a later commit."""
        return self._made("newer", "", ARCHITECTURES)

    def kind(self, kind: str, arches: tuple[str, ...] = ("amd64",)) -> Path:
        """A build that does not do well: "exits" at once, or is "silent" towards the control plane (KINDS)."""
        return self._made(kind, KINDS[kind], arches)

    @staticmethod
    def release(folder: Path, arch: str = "amd64") -> str:
        """The name of the release folder that this build gets on a node."""
        return read_manifest(folder).release(arch)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        places.make_folder(self._base)
        with (self._base / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _made(self, kind: str, lines: str, arches: tuple[str, ...]) -> Path:
        out = self.folder / f"{kind}-{'-'.join(arches)}"
        with self._alone():
            places.make_folder(self.folder)
            self.folder.touch()
            if (out / "manifest.json").exists():
                return out
            for old in sorted(self._base.iterdir(), key=lambda one: one.stat().st_mtime)[:-KEPT]:
                if old.is_dir():
                    shutil.rmtree(old, ignore_errors=True)
            tree = self.folder / f"{kind}.tree"
            shutil.rmtree(tree, ignore_errors=True)
            for name, content in self._contents.items():
                path = tree / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if kind != "first":
                main = tree / "runtime" / "agent" / "main.py"
                text = main.read_text()
                assert text.count(_RUN) == 1
                main.write_text(text.replace(_RUN, _RUN + lines) + f"# {kind}\n")
            _commit(tree, kind)
            build(tree, out, arches, allow_dirty=False, progress=lambda _text: None)
            shutil.rmtree(tree)
        return out
