"""A mirror in this process, and builds that are made in no time because nobody runs them."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.protocol.manifest import BuildFile, Manifest, read_manifest
from runtime.server.mirror import Mirror
from runtime.server.settings import ServerSettings

MACHINES = {"amd64": 62, "arm64": 183}


def native_file(arch: str) -> bytes:
    """The beginning of a native library, and filling."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, MACHINES[arch]) + bytes(20_000)


def fake_builds(folder: Path, mark: str, arches: tuple[str, ...] = ("amd64", "arm64"), *, dirty: bool = False) -> Path:
    """A build folder whose files are small archives with a stamp and one native file each."""
    folder.mkdir(parents=True, exist_ok=True)
    builds = {}
    manifest = Manifest("0.1.0", "0123456789ab", "2026-01-02T03:04:05Z", dirty, 1, builds)
    stamp = {name: getattr(manifest, name) for name in ("version", "commit", "built_at", "dirty")}
    for arch in arches:
        made = io.BytesIO(b"#!/bin/sh\n")
        with zipfile.ZipFile(made, "a") as archive:
            for name, content in (
                ("mark", mark.encode()),
                ("runtime/_build.json", json.dumps(stamp).encode()),
                (".deps/x/native.so", native_file(arch)),
            ):
                archive.writestr(zipfile.ZipInfo(name), content)
        content = made.getvalue()
        sha256, md5 = hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest()
        entry = BuildFile(f"heterofleet-agent-{arch}-{sha256[:8]}", len(content), md5, sha256)
        (folder / entry.file).write_bytes(content)
        builds[arch] = entry
    (folder / "manifest.json").write_text(manifest.text())
    return folder


def whole(tree: Path) -> bool:
    """Whether the tree's manifest and the files that it names belong together."""
    folder = tree / "static/agent"
    return all(
        hashlib.sha256((folder / entry.file).read_bytes()).hexdigest() == entry.sha256
        for entry in read_manifest(folder).builds.values()
    )


def flip(path: Path, position: int = 1000) -> None:
    """One bit of one byte, whatever the file's mode; its times stay."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(0o444)


@dataclass
class Served:
    """A running mirror: its address, its tree, and the builds that it is made from."""

    url: str
    tree: Path
    builds: Path


@contextmanager
def mirror(state: Path, builds: Path, **settings: str) -> Iterator[Served]:
    """Serving when this begins; stopped at the end."""
    made = Mirror(
        ServerSettings(mirror_listen="127.0.0.1:0", state_dir=str(state), builds_dir=str(builds), **settings)  # type: ignore[arg-type]
    )
    made.start()
    try:
        yield Served(f"http://127.0.0.1:{made.port}", made.folder, builds)
    finally:
        made.join()


def wait(true: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)


def until_published(served: Served) -> None:
    """Wait until the tree has the manifest of the builds."""
    here, there = served.builds / "manifest.json", served.tree / "static/agent/manifest.json"
    wait(lambda: there.exists() and there.read_bytes() == here.read_bytes())
