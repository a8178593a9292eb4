"""``manifest.json``: which agent files a control plane or a mirror hands out, and their checksums.

``{"version", "commit", "built_at", "dirty", "protocol", "builds": {"amd64": {"file", "size", "md5", "sha256"}}}``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from runtime.protocol import codec

FILE_NAME = "manifest.json"
ARCHITECTURES = ("amd64", "arm64")
PIECE = 1 << 18
"""Bytes of a file that are read at once."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*", re.ASCII)
_HEX = re.compile(r"[0-9a-f]+", re.ASCII)


class ManifestError(ValueError):
    """The manifest is not one; the message names the member at fault."""


@dataclass(frozen=True)
class Checksums:
    """Size in bytes and digests in hex of some content."""

    size: int
    md5: str
    sha256: str


@dataclass(frozen=True)
class BuildFile:
    """One architecture's file. ``file`` is a bare name beside the manifest, ``size`` is in bytes."""

    file: str
    size: int
    md5: str
    sha256: str

    @property
    def sums(self) -> Checksums:
        return Checksums(self.size, self.md5, self.sha256)


@dataclass(frozen=True)
class Manifest:
    """The version triple of a set of builds, its dirty flag, and the files by architecture.

    ``built_at`` is the commit's time (RFC 3339), ``protocol`` the protocol version that the agent speaks.
    """

    version: str
    commit: str
    built_at: str
    dirty: bool
    protocol: int
    builds: dict[str, BuildFile]

    def release(self, arch: str) -> str:
        """The release folder's name on a node: ``<version>-<commit>[-dirty]-<8 of sha256>``."""
        mark = "-dirty" if self.dirty else ""
        return f"{self.version}-{self.commit}{mark}-{self.builds[arch].sha256[:8]}"

    def text(self) -> str:
        """The file's text; equal manifests give equal bytes."""
        return json.dumps(codec.encode(self), indent=2) + "\n"


def pieces(opened: IO[bytes]) -> Iterable[bytes]:
    """The content of an open file, from where it stands."""
    return iter(lambda: opened.read(PIECE), b"")


def checksums(content: Iterable[bytes]) -> Checksums:
    """Of content that comes in pieces."""
    size, md5, sha256 = 0, hashlib.md5(usedforsecurity=False), hashlib.sha256()
    for piece in content:
        size += len(piece)
        md5.update(piece)
        sha256.update(piece)
    return Checksums(size, md5.hexdigest(), sha256.hexdigest())


def parse_manifest(text: str) -> Manifest:
    """The manifest in ``text``. Raises ManifestError; names and checksums are safe in paths afterwards."""
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise ManifestError(f"not JSON: {error}") from error
    try:
        manifest = codec.decode(Manifest, data)
    except codec.WireError as error:
        raise ManifestError(str(error)) from error
    words = {"version": manifest.version, "commit": manifest.commit}
    words.update({f"builds.{arch}.file": build.file for arch, build in manifest.builds.items()})
    for path, word in words.items():
        if _WORD.fullmatch(word) is None:
            raise ManifestError(f"{path}: found {word!r}, wanted letters, digits, '.', '_', '+' and '-'")
    for arch, build in manifest.builds.items():
        for name, digest, length in (("md5", build.md5, 32), ("sha256", build.sha256, 64)):
            if _HEX.fullmatch(digest) is None or len(digest) != length:
                raise ManifestError(f"builds.{arch}.{name}: found {digest!r}, wanted {length} hex digits")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest in ``folder``. Raises FileNotFoundError, ManifestError."""
    return parse_manifest((folder / FILE_NAME).read_text("utf-8"))
