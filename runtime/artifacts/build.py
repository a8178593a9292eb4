"""Making the agent's file: one executable archive (pex) for each architecture, and their manifest.

The same sources give the same bytes whatever the folder, user, umask and time zone: every input is pinned,
every time is fixed, every name is sorted. Native parts come as wheels of that architecture and are checked.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from runtime.artifacts.elf import ElfError, NativePart, native_parts
from runtime.artifacts.errors import BuildError
from runtime.artifacts.source import Source, read_source
from runtime.artifacts.wheels import PLATFORMS, PYTHONS, cache_folder, locked_names, wheels_for
from runtime.protocol import PROTOCOL
from runtime.protocol.manifest import FILE_NAME, BuildFile, Manifest

PEX_VERSION = "2.105.2"
"""Its start code becomes part of the file, so another release gives other bytes."""

ENTRY_POINT = "runtime.agent.main:main"

Progress = Callable[[str], None]


def build(root: Path, out: Path, arches: Sequence[str], *, allow_dirty: bool, progress: Progress) -> Manifest:
    """Build the agent for ``arches`` into ``out``, and return the manifest written there.

    Everything is built and checked before the first file appears in ``out``; the manifest comes last, and
    files that it does not name go after it. Raises BuildError; ``out`` is then as before.
    """
    _check_pex()
    source = read_source(root)
    if source.changes and not allow_dirty:
        shown = "\n".join(f"  {line}" for line in source.changes[:10])
        more = f"\n  and {len(source.changes) - 10} more" if len(source.changes) > 10 else ""
        raise BuildError(
            f"{root} differs from its commit, so a build would not be what its commit says:\n{shown}{more}\n"
            "commit the changes, or build with --allow-dirty (the build is then marked dirty)"
        )
    progress(f"source: {source.build} of {source.build.built_at}")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".build-") as scratch:
        stage = _stage(source, Path(scratch) / "source")
        made = {arch: _one(source, arch, stage, Path(scratch), progress) for arch in arches}
        builds = {arch: _describe(arch, path) for arch, path in made.items()}
        manifest = Manifest(
            source.build.version,
            source.build.commit,
            source.build.built_at or "",
            bool(source.build.dirty),
            PROTOCOL,
            builds,
        )
        for arch, path in made.items():
            path.replace(out / builds[arch].file)
        listing = Path(scratch) / FILE_NAME
        listing.write_text(manifest.text(), "utf-8")
        listing.chmod(0o644)
        listing.replace(out / FILE_NAME)
    kept = {entry.file for entry in builds.values()}
    for old in out.glob("heterofleet-agent-*"):
        if old.name not in kept:
            old.unlink(missing_ok=True)
    for arch, entry in builds.items():
        progress(f"{arch}: {out / entry.file} {entry.size / 1e6:.1f} MB sha256 {entry.sha256}")
    return manifest


def _check_pex() -> None:
    try:
        found = importlib.metadata.version("pex")
    except importlib.metadata.PackageNotFoundError as error:
        raise BuildError("pex is not installed: `pip install heterofleet[artifacts]`") from error
    if found != PEX_VERSION:
        raise BuildError(
            f"found pex {found}, wanted {PEX_VERSION}: its start code becomes part of every build, "
            f"so another release gives other bytes; `pip install pex=={PEX_VERSION}`"
        )


def _stage(source: Source, stage: Path) -> Path:
    """The agent's own code and its stamp, with the modes and times of no particular machine."""
    stamp = {
        "version": source.build.version,
        "commit": source.build.commit,
        "built_at": source.build.built_at,
        "dirty": source.build.dirty,
    }
    contents = {name: source.path(name).read_bytes() for name in source.files}
    contents["runtime/_build.json"] = (json.dumps(stamp, sort_keys=True) + "\n").encode()
    for name, content in contents.items():
        path = stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
        os.utime(path, (source.epoch, source.epoch))
    return stage


def _one(source: Source, arch: str, stage: Path, scratch: Path, progress: Progress) -> Path:
    lock_file = source.path("runtime/artifacts/agent-requirements.txt")
    wheels = wheels_for(arch, progress, lock_file)
    progress(f"{arch}: packing {len(source.files)} files and {len(wheels)} wheels")
    target = scratch / f"{arch}.pex"
    command = [sys.executable, "-m", "pex", *locked_names(lock_file.read_text("utf-8"))]
    for wheel in wheels:
        command += ["--pre-resolved-dist", str(wheel)]
    for python in PYTHONS:
        tag = python.replace(".", "")
        command += ["--platform", f"{PLATFORMS[arch]}-cp-{tag}-cp{tag}"]
    command += ["--sources-directory", str(stage), "--entry-point", ENTRY_POINT, "--venv"]
    command += ["--python-shebang", "/usr/bin/env python3", "--no-emit-warnings"]
    command += ["--pex-root", str(cache_folder() / "pex"), "--output-file", str(target)]
    # Nothing of this user's environment: pex writes the cache folder that it would use into the file.
    environ = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(scratch), "TMPDIR": str(scratch)}
    environ |= {"SOURCE_DATE_EPOCH": str(source.epoch), "TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environ, umask=0o022, cwd=scratch
    )
    if done.returncode != 0:
        raise BuildError(f"pex could not pack the {arch} build:\n" + "\n".join(done.stderr.splitlines()[-8:]))
    _put_launcher(target, source.path("runtime/artifacts/launcher.sh").read_bytes())
    check_machines(arch, target)
    target.chmod(0o755)
    return target


def _put_launcher(target: Path, launcher: bytes) -> None:
    """Our own first lines in place of pex's: they find a Python that is new enough under other names, too."""
    shebang, newline, archive = target.read_bytes().partition(b"\n")
    if not shebang.startswith(b"#!") or not archive.startswith(b"PK") or not newline:
        raise BuildError(f"pex wrote a file that begins with {shebang[:40]!r}, wanted a line '#!...' and an archive")
    target.write_bytes(launcher + archive)


def check_machines(arch: str, path: Path) -> list[NativePart]:
    """The native parts of a build. Raises BuildError when one is for another machine than ``arch``."""
    try:
        with path.open("rb") as archive:
            parts = list(native_parts(archive))
    except ElfError as error:
        raise BuildError(f"the {arch} build is not whole: {error}") from error
    wrong = [f"{part.path} is for {part.machine}" for part in parts if part.machine != arch]
    if wrong:
        raise BuildError(f"the {arch} build has native parts of another machine: " + "; ".join(wrong))
    return parts


def _describe(arch: str, path: Path) -> BuildFile:
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return BuildFile(f"heterofleet-agent-{arch}-{sha256[:8]}", len(content), md5, sha256)
