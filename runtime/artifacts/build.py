"""Making builds: one executable archive (pex) for each architecture, and their manifest.

The same sources give the same bytes whatever the folder, user, umask and time zone: every input is pinned,
every time is fixed, every name is sorted. Native parts come as wheels of that architecture and are checked.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from runtime.artifacts import folders
from runtime.artifacts.children import last_lines, run
from runtime.artifacts.elf import ElfError, NativePart, native_parts
from runtime.artifacts.errors import BuildError
from runtime.artifacts.packed import unpinned
from runtime.artifacts.recipe import AGENT, Recipe
from runtime.artifacts.source import Source, read_source
from runtime.artifacts.wheels import PLATFORMS, cache_folder, locked_names, wheels_for
from runtime.protocol import PROTOCOL
from runtime.protocol.manifest import FILE_NAME, BuildFile, Manifest, checksums, pieces

PEX_VERSION = "2.105.2"
"""Its start code becomes part of the file, so another release gives other bytes."""

DEADLINE_S = 600.0
"""For each call of pex."""

Progress = Callable[[str], None]


def build(
    root: Path, out: Path, arches: Sequence[str], *, allow_dirty: bool, progress: Progress, recipe: Recipe = AGENT
) -> Manifest:
    """Build what ``recipe`` says for ``arches`` into ``out``, and return the manifest written there.

    Everything is built and checked before the first file appears in ``out``; the manifest comes last, and
    files that it does not name go after it. Raises BuildError; ``out`` is then as before.
    """
    _check_pex()
    source = read_source(root, recipe)
    if source.changes and not allow_dirty:
        shown = "\n".join(f"  {line}" for line in source.changes[:10])
        more = f"\n  and {len(source.changes) - 10} more" if len(source.changes) > 10 else ""
        raise BuildError(
            f"{root} differs from its commit, so a build would not be what its commit says:\n{shown}{more}\n"
            "commit the changes, or build with --allow-dirty (the build is then marked dirty)"
        )
    progress(f"source: {source.build} of {source.build.built_at}")
    with folders.only_writer(out, progress):
        folders.clear_scratch(out)
        with tempfile.TemporaryDirectory(dir=out, prefix=folders.SCRATCH) as scratch:
            manifest = _into(out, source, arches, Path(scratch), progress)
        kept = {entry.file for entry in manifest.builds.values()}
        for old in out.glob(f"{recipe.prefix}*"):
            if old.name not in kept:
                old.unlink(missing_ok=True)
    for arch, entry in manifest.builds.items():
        progress(f"{arch}: {out / entry.file} {entry.size / 1e6:.1f} MB sha256 {entry.sha256}")
    return manifest


def _into(out: Path, source: Source, arches: Sequence[str], scratch: Path, progress: Progress) -> Manifest:
    stage = _stage(source, scratch / "source")
    made = {arch: _one(source, arch, stage, scratch, progress) for arch in arches}
    builds = {arch: _describe(source.recipe, arch, path) for arch, path in made.items()}
    manifest = Manifest(
        source.build.version,
        source.build.commit,
        source.build.built_at or "",
        bool(source.build.dirty),
        PROTOCOL,
        builds,
    )
    listing = scratch / FILE_NAME
    listing.write_text(manifest.text(), "utf-8")
    listing.chmod(0o644)
    for path in (*made.values(), listing):
        folders.sync(path)
    for arch, path in made.items():
        path.replace(out / builds[arch].file)
    listing.replace(out / FILE_NAME)
    folders.sync(out)
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


def _contents(source: Source) -> dict[str, bytes]:
    """Path in the archive -> content: our own code and its stamp."""
    stamp = {
        "version": source.build.version,
        "commit": source.build.commit,
        "built_at": source.build.built_at,
        "dirty": source.build.dirty,
    }
    return {**source.files, "runtime/_build.json": (json.dumps(stamp, sort_keys=True) + "\n").encode()}


def _stage(source: Source, stage: Path) -> Path:
    """A folder of these contents, with the modes and times of no particular machine."""
    for name, content in _contents(source).items():
        path = stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
        os.utime(path, (source.epoch, source.epoch))
    return stage


def _one(source: Source, arch: str, stage: Path, scratch: Path, progress: Progress) -> Path:
    wheels = wheels_for(arch, progress, source.lock, source.recipe.pythons)
    progress(f"{arch}: packing {len(source.files)} files and {len(wheels)} wheels")
    target = scratch / f"{arch}.pex"
    _pack(source, arch, stage, wheels, target)
    planted = unpinned(target, wheels, _contents(source), whole=source.recipe.whole_wheels)
    if planted is not None:
        progress(f"{arch}: {_pex_root()} was altered ({planted}); removing it and packing again")
        shutil.rmtree(_pex_root(), ignore_errors=True)
        _pack(source, arch, stage, wheels, target)
        planted = unpinned(target, wheels, _contents(source), whole=source.recipe.whole_wheels)
    if planted is not None:
        raise BuildError(f"{planted} in the {arch} build is not what the sources and the pinned wheels have there")
    if source.launcher:
        _put_launcher(target, source.launcher)
    progress(f"{arch}: {len(check_machines(arch, target))} native files, all for {arch}")
    target.chmod(0o755)
    return target


def _pack(source: Source, arch: str, stage: Path, wheels: Sequence[Path], target: Path) -> None:
    """Have pex write ``target``."""
    command = [sys.executable, "-m", "pex", *locked_names(source.lock)]
    for wheel in wheels:
        command += ["--pre-resolved-dist", str(wheel)]
    for python in source.recipe.pythons:
        tag = python.replace(".", "")
        command += ["--platform", f"{PLATFORMS[arch]}-cp-{tag}-cp{tag}"]
    command += [
        "--sources-directory",
        str(stage),
        "--entry-point",
        source.recipe.entry_point,
        *source.recipe.pex_options,
    ]
    command += ["--python-shebang", "/usr/bin/env python3", "--no-emit-warnings"]
    command += ["--pex-root", str(_pex_root()), "--output-file", str(target)]
    # Nothing of this user's environment: pex writes the cache folder that it would use into the file.
    scratch = target.parent
    environ = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(scratch), "TMPDIR": str(scratch)}
    environ |= {"SOURCE_DATE_EPOCH": str(source.epoch), "TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "0"}
    done = run(command, f"pex (packing the {arch} build)", deadline_s=DEADLINE_S, env=environ, umask=0o022, cwd=scratch)
    if done.returncode != 0:
        raise BuildError(f"pex could not pack the {arch} build:\n{last_lines(done.stderr, 8)}")


def _pex_root() -> Path:
    """Where pex keeps what it prepared, so that the next build is quick."""
    return cache_folder() / "pex"


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
    wrong = [str(part) for part in parts if part.machine != arch]
    if wrong:
        raise BuildError(f"the {arch} build has native parts of another machine: " + "; ".join(wrong))
    return parts


def _describe(recipe: Recipe, arch: str, path: Path) -> BuildFile:
    with path.open("rb") as opened:
        sums = checksums(pieces(opened))
    return BuildFile(f"{recipe.prefix}{arch}-{sums.sha256[:8]}", sums.size, sums.md5, sums.sha256)
