"""Comparing what each place hands out: the build folder, a control plane, a mirror; both architectures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import requests

from runtime.artifacts.errors import VerifyError
from runtime.protocol.manifest import ARCHITECTURES, FILE_NAME, BuildFile, Manifest, ManifestError, parse_manifest

TIMEOUT_S = 30
PIECE = 1 << 16


class Place(Protocol):
    """Somewhere that builds are handed out."""

    @property
    def name(self) -> str:
        """What tables show."""

    def manifest(self) -> Manifest:
        """Raises VerifyError."""

    def content(self, arch: str, entry: BuildFile) -> Iterator[bytes]:
        """The file's bytes, in pieces. Raises VerifyError."""


@dataclass(frozen=True)
class Folder:
    """``dist/agent/`` and its like."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def manifest(self) -> Manifest:
        try:
            return parse_manifest((self.path / FILE_NAME).read_text("utf-8"))
        except OSError as error:
            raise VerifyError(f"{self.path / FILE_NAME}: {error.strerror}") from error
        except (ManifestError, UnicodeDecodeError) as error:
            raise VerifyError(f"{self.path / FILE_NAME}: {error}") from error

    def content(self, arch: str, entry: BuildFile) -> Iterator[bytes]:
        try:
            with (self.path / entry.file).open("rb") as opened:
                yield from iter(lambda: opened.read(PIECE), b"")
        except OSError as error:
            raise VerifyError(f"{self.path / entry.file}: {error.strerror}") from error


@dataclass(frozen=True)
class Web:
    """A control plane (files by ``?arch=``) or a static mirror (files by name), at ``url``."""

    url: str
    by_name: bool = False

    @property
    def name(self) -> str:
        return f"{self.url}/static/agent"

    def manifest(self) -> Manifest:
        where = f"{self.name}/{FILE_NAME}"
        try:
            return parse_manifest(b"".join(_get(where)).decode())
        except (ManifestError, UnicodeDecodeError) as error:
            raise VerifyError(f"{where}: {error}") from error

    def content(self, arch: str, entry: BuildFile) -> Iterator[bytes]:
        return _get(f"{self.name}/{entry.file}" if self.by_name else f"{self.name}?arch={arch}")


def _get(url: str) -> Iterator[bytes]:
    try:
        with requests.get(url, timeout=TIMEOUT_S, stream=True, allow_redirects=False) as answer:
            if answer.status_code != 200:
                raise VerifyError(f"{url} answered with HTTP status {answer.status_code}{_words(answer)}")
            yield from answer.iter_content(PIECE)
    except requests.exceptions.ConnectionError as error:
        raise VerifyError(f"cannot reach {url}: {error}", unreachable=True) from error
    except requests.exceptions.RequestException as error:
        raise VerifyError(f"{url}: {error}", unreachable=isinstance(error, requests.exceptions.Timeout)) from error


def _words(answer: requests.Response) -> str:
    if "Location" in answer.headers:
        return f", a redirect to {answer.headers['Location']}"
    try:
        return f": {answer.json()['detail']}"
    except (ValueError, KeyError, TypeError):
        return ""


@dataclass(frozen=True)
class Row:
    """What one place hands out for one architecture. ``problem`` None: it is what the first place's manifest says."""

    place: str
    arch: str
    size: int | None
    md5: str | None
    sha256: str | None
    problem: str | None


def verify(places: Sequence[Place]) -> list[Row]:
    """Look at every place; the first one's manifest says what is right. Raises VerifyError when that one has none."""
    wanted = places[0].manifest()
    return [_row(place, arch, wanted) for place in places for arch in ARCHITECTURES]


def _row(place: Place, arch: str, wanted: Manifest) -> Row:
    right = wanted.builds.get(arch)
    if right is None:
        return Row(place.name, arch, None, None, None, "no build for this architecture")
    size, md5, sha256 = 0, hashlib.md5(usedforsecurity=False), hashlib.sha256()
    try:
        manifest = place.manifest()
        here = manifest.builds.get(arch)
        if here is None:
            return Row(place.name, arch, None, None, None, "no build for this architecture")
        for piece in place.content(arch, here):
            size += len(piece)
            md5.update(piece)
            sha256.update(piece)
    except VerifyError as error:
        if error.unreachable:
            raise
        return Row(place.name, arch, None, None, None, str(error))
    found = (size, md5.hexdigest(), sha256.hexdigest())
    problem = None
    if found != (here.size, here.md5, here.sha256):
        problem = "the file is not what the manifest beside it says"
    elif found != (right.size, right.md5, right.sha256):
        mark = "-dirty" if manifest.dirty else ""
        problem = f"another build: {manifest.version}/{manifest.commit}{mark}"
    return Row(place.name, arch, *found, problem)
