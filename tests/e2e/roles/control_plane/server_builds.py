"""Builds of the control plane from this checkout's sources: as it is, with a further migration, and two bad ones.

They are for the Python of the lab's nodes only, and kept in the lab's cache by the content of what they are made from.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from runtime.artifacts.build import build
from runtime.artifacts.recipe import SERVER
from runtime.protocol.manifest import read_manifest
from runtime.server.store.migrate import head
from tests.lab import places

ROOT = Path(__file__).resolve().parents[4]
RECIPE = dataclasses.replace(SERVER, pythons=("3.11",))
INPUTS = ("setup.cfg", "runtime/artifacts/launcher.sh", *RECIPE.paths)
VERSIONS = "runtime/server/store/migrations/versions"
NEXT = "9000"
KEPT = 3
"""Contents whose builds stay in the cache."""

MIGRATION = f'''
"""One more table, for the tests of upgrades."""
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{NEXT}", "{head()}", None, None


def upgrade():
    op.create_table("tried", sa.Column("id", sa.Integer(), primary_key=True))
    %s
'''
STARTED = "        migrate(self.db)\n"
KINDS = {
    "first": {},
    "newer": {f"{VERSIONS}/9000_tried.py": MIGRATION % "pass"},
    # Its migration does not take the data.
    "stuck": {f"{VERSIONS}/9000_tried.py": MIGRATION % 'raise RuntimeError("this data does not fit")'},
    # It migrates, and ends.
    "dead": {
        f"{VERSIONS}/9000_tried.py": MIGRATION % "pass",
        "runtime/server/parts.py": (STARTED, STARTED + '        raise RuntimeError("this build ends at once")\n'),
    },
}


def _files() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in INPUTS:
        place = ROOT / name
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.name != "_build.json":
                found[str(path.relative_to(ROOT))] = path.read_bytes()
    return found


class ServerBuilds:
    """Kind -> the folder of its build; made when it is first asked for."""

    def __init__(self) -> None:
        self._files = _files()
        digest = hashlib.sha256(repr(sorted(self._files.items())).encode() + repr(KINDS).encode())
        self._folder = places.cache() / "server-builds" / digest.hexdigest()[:16]

    def __getitem__(self, kind: str) -> Path:
        out = self._folder / kind
        places.make_folder(self._folder)
        with (self._folder.parent / ".lock").open("w") as lock:  # other sessions on this machine wait, and share it
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (out / "manifest.json").exists():
                self._make(kind, out)
        return out

    def _make(self, kind: str, out: Path) -> None:
        for old in sorted(self._folder.parent.glob("[!.]*"), key=lambda one: one.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        tree = self._folder / f"{kind}.tree"
        shutil.rmtree(tree, ignore_errors=True)
        self._write(tree, kind)
        build(tree, out, ("amd64",), allow_dirty=False, progress=lambda _text: None, recipe=RECIPE)
        shutil.rmtree(tree)

    def release(self, kind: str) -> str:
        """The name of its release folder."""
        return read_manifest(self[kind]).release("amd64")

    def _write(self, tree: Path, kind: str) -> None:
        for name, content in self._files.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name, what in KINDS[kind].items():
            path = tree / name
            if isinstance(what, tuple):
                text = path.read_text()
                assert text.count(what[0]) == 1
                path.write_text(text.replace(*what))
            else:
                path.write_text(what)
        when = "2026-01-02T03:04:05Z"
        environ = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
        for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", kind]):
            subprocess.run(["git", "-C", tree, *identity, *words], check=True, capture_output=True, env=environ)
