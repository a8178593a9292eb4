"""The static mirror: a read-only tree of files that any web server can hand out, made from a build folder.

``static/agent/manifest.json``, the files it names beside it, and ``deploy-agent-all-in-one.sh``. Who reads the tree
while it is published finds either the builds from before or the new ones: files first, the manifest last, and what
the manifest before it named stays until the next change.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from runtime.artifacts import folders
from runtime.artifacts.elf import ElfError, parts_if_archive
from runtime.artifacts.errors import BuildError
from runtime.artifacts.scripts import script
from runtime.protocol.manifest import FILE_NAME, Manifest, ManifestError, checksums, parse_manifest, pieces

ALL_IN_ONE = "deploy-agent-all-in-one.sh"
AGENT = "static/agent"
"""Where manifest and builds lie, in the tree and in URLs."""
OURS = "heterofleet-agent-*"
"""Names of builds: only such files are ever removed."""
FILE_MODE = 0o444

Progress = Callable[[str], None]
Action = Literal["write", "keep", "remove"]


@dataclass(frozen=True)
class Item:
    """A file of the tree: its path there, what must be in it, and where its bytes come from."""

    path: str
    size: int
    sha256: str
    opened: Callable[[], IO[bytes]]


@dataclass(frozen=True)
class Change:
    """What publishing does, or would do, to one path of the tree. ``size`` is in bytes, None for what goes away."""

    path: str
    action: Action
    size: int | None = None
    sha256: str | None = None


def plan(
    wanted: Mapping[str, tuple[int, str]],
    present: Mapping[str, str | None],
    named: Collection[str],
) -> list[Change]:
    """What to do, in this order. All names are paths in the tree.

    ``wanted`` has size and sha256 of each file, the manifest last; ``present`` the sha256 of what lies there (None:
    no ordinary file), the builds of earlier times among them; ``named`` what the manifest there names now. Builds
    that neither manifest names go, and only when something else changes.
    """
    changes = [
        Change(path, "keep" if present.get(path) == sha256 else "write", size, sha256)
        for path, (size, sha256) in wanted.items()
    ]
    if any(change.action == "write" for change in changes):
        old = sorted(path for path in present if path not in wanted and path not in named)
        changes += [Change(path, "remove") for path in old]
    return changes


@dataclass(frozen=True)
class Published:
    """The builds of a tree, and what publishing them changed there."""

    manifest: Manifest
    changes: list[Change]

    @property
    def changed(self) -> bool:
        return any(change.action != "keep" for change in self.changes)


def publish(
    builds: Path,
    target: Path,
    *,
    progress: Progress,
    server_url: str = "",
    mirror_url: str = "",
    dry_run: bool = False,
) -> Published:
    """Make ``target`` the mirror of the folder ``builds``; publishing the same again changes nothing.

    ``server_url`` and ``mirror_url`` go into the script, see ``scripts.script``. Every byte is checked before the
    first one is written. Raises BuildError and OSError; the tree is then as it was, or has unused files more.
    """
    if builds.resolve() == (target / AGENT).resolve():
        raise BuildError(f"{builds} is the tree's own folder: publish from another one, such as dist/agent")
    manifest, items = _items(builds, server_url, mirror_url)
    _refuse_links(target)
    if dry_run:
        changes = _changes(target, items)
        _to_write(target, items, changes)
        return Published(manifest, changes)
    with folders.only_writer(target, progress):
        folder = target / AGENT
        for path in (target / "static", folder):
            folders.make_folder(path)
            if path.stat().st_mode & 0o7777 != folders.FOLDER_MODE:
                path.chmod(folders.FOLDER_MODE)
        folders.clear_scratch(target)
        folders.clear_scratch(folder)
        changes = _changes(target, items)
        _apply(target, items, changes, progress)
    return Published(manifest, changes)


def _items(builds: Path, server_url: str, mirror_url: str) -> tuple[Manifest, list[Item]]:
    """Everything that belongs into the tree, checked; the manifest is the last."""
    listing = builds / FILE_NAME
    try:
        text = listing.read_text("utf-8")
        manifest = parse_manifest(text)
    except FileNotFoundError as error:
        raise BuildError(f"there is no {listing}: make builds with `heterofleet artifacts build`") from error
    except (ManifestError, UnicodeDecodeError) as error:
        raise BuildError(f"{listing}: {error}") from error
    items = []
    for arch, entry in sorted(manifest.builds.items()):
        path = builds / entry.file
        with path.open("rb") as opened:
            if checksums(pieces(opened)) != entry.sums:
                raise BuildError(f"{path} is not what {FILE_NAME} beside it says: build again; nothing was changed")
            try:
                foreign = [str(part) for part in parts_if_archive(opened) if part.machine != arch]
            except ElfError as error:
                raise BuildError(f"{path}: {error}") from error
        if foreign:
            raise BuildError(f"{path} is no build for {arch}: " + "; ".join(foreign))
        items.append(Item(f"{AGENT}/{entry.file}", entry.size, entry.sha256, _opener(path)))
    items.append(_text(ALL_IN_ONE, script(ALL_IN_ONE, server_url, mirror_url).encode()))
    items.append(_text(f"{AGENT}/{FILE_NAME}", text.encode()))
    return manifest, items


def _opener(path: Path) -> Callable[[], IO[bytes]]:
    return lambda: path.open("rb")


def _text(path: str, content: bytes) -> Item:
    return Item(path, len(content), hashlib.sha256(content).hexdigest(), lambda: io.BytesIO(content))


def _refuse_links(target: Path) -> None:
    """A folder of the tree that is a link would lead the writing, and the readers, somewhere else."""
    for path in (target / "static", target / AGENT):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise BuildError(f"{path} is a link or a file, not a folder: remove it, or choose another place")


def _changes(target: Path, items: list[Item]) -> list[Change]:
    wanted = {item.path: (item.size, item.sha256) for item in items}
    folder = target / AGENT
    lying = {f"{AGENT}/{path.name}" for path in folder.glob(OURS)} if folder.is_dir() else set()
    present = {path: _sha256(target / path) for path in {*wanted, *lying} if os.path.lexists(target / path)}
    try:
        before = parse_manifest((folder / FILE_NAME).read_text("utf-8"))
        named = {f"{AGENT}/{entry.file}" for entry in before.builds.values()}
    except (OSError, ManifestError, UnicodeDecodeError):
        named = set()  # no tree before this one, or none that anybody could use
    return plan(wanted, present, named)


def _sha256(path: Path) -> str | None:
    """None: not an ordinary file that all may read, so it is written anew."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != FILE_MODE:
        return None
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _to_write(target: Path, items: list[Item], changes: list[Change]) -> list[Item]:
    """What of ``items`` is new. Raises BuildError when there is no room for it."""
    actions = {change.path: change.action for change in changes}
    new = [item for item in items if actions[item.path] == "write"]
    folders.need_space(target, sum(item.size for item in new))
    return new


def _apply(target: Path, items: list[Item], changes: list[Change], progress: Progress) -> None:
    new = _to_write(target, items, changes)
    for item in new:
        if (target / item.path).is_dir() and not (target / item.path).is_symlink():
            raise BuildError(f"{target / item.path} is a folder where a file belongs; nothing was changed")
    beside: dict[str, Path] = {}
    try:
        for item in new:
            progress(f"writing {item.path} ({item.size / 1e6:.1f} MB)")
            beside[item.path] = place = (target / item.path).parent / f"{folders.SCRATCH}{secrets.token_hex(6)}"
            _write(item, place)
        for item in new:
            beside[item.path].replace(target / item.path)
            folders.sync((target / item.path).parent)
    finally:
        for path in beside.values():
            path.unlink(missing_ok=True)
    for change in changes:
        if change.action == "remove":
            progress(f"removing {change.path}")
            (target / change.path).unlink(missing_ok=True)


def _write(item: Item, place: Path) -> None:
    """Copy, and look at what was copied: the source may have changed since it was checked."""
    sha256 = hashlib.sha256()
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    with os.fdopen(handle, "wb") as file, item.opened() as source:
        for piece in pieces(source):
            sha256.update(piece)
            file.write(piece)
        file.flush()
        os.fchmod(file.fileno(), FILE_MODE)
        os.fsync(file.fileno())
    if sha256.hexdigest() != item.sha256:
        raise BuildError(f"{item.path} changed while it was copied; publish again")
