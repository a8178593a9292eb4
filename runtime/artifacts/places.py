"""Where builds are handed out: a build folder, a control plane, a static mirror; and how they are read from there."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import requests

from runtime.artifacts.elf import ElfError, NativePart, native_parts
from runtime.artifacts.errors import VerifyError
from runtime.artifacts.publish import AGENT
from runtime.protocol.causes import root_cause
from runtime.protocol.manifest import FILE_NAME, BuildFile, Manifest, ManifestError, parse_manifest, pieces

TIMEOUT_S = 30
"""For a connection, and for each piece of an answer."""
PIECE = 1 << 16
"""Bytes of an answer that are taken at once."""
MANIFEST_LIMIT = 1 << 20
"""Bytes; a manifest has some six hundred."""


@dataclass(frozen=True)
class Answer:
    """A file's bytes in pieces, and what was said about them: checksums in headers, whether it is a web page."""

    name: str
    pieces: Iterable[bytes]
    md5: str | None = None
    sha256: str | None = None
    is_page: bool = False
    must_have_sums: bool = False


class Place(Protocol):
    """Somewhere that builds are handed out."""

    @property
    def name(self) -> str:
        """What tables show."""

    def manifest(self) -> Manifest:
        """Raises VerifyError."""

    def content(self, arch: str, entry: BuildFile) -> Answer:
        """The file. Raises VerifyError, also while the pieces are read."""


@dataclass(frozen=True)
class Folder:
    """``dist/agent/`` and its like."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def manifest(self) -> Manifest:
        path = self.path / FILE_NAME
        try:
            with path.open("rb") as opened:
                return _manifest(str(path), pieces(opened))
        except FileNotFoundError as error:
            raise VerifyError(
                f"{path}: {error.strerror}: make builds with `heterofleet artifacts build`, "
                "or name their folder (--dist)"
            ) from error
        except OSError as error:
            raise VerifyError(f"{path}: {error.strerror}") from error

    def content(self, arch: str, entry: BuildFile) -> Answer:
        return Answer(str(self.path / entry.file), self._pieces(self.path / entry.file))

    def _pieces(self, path: Path) -> Iterator[bytes]:
        try:
            with path.open("rb") as opened:
                yield from pieces(opened)
        except OSError as error:
            raise VerifyError(f"{path}: {error.strerror}") from error

    def native(self, arch: str) -> list[NativePart]:
        """Every native file inside the build for ``arch``, with its machine. Raises VerifyError."""
        path = self.path / self.manifest().builds[arch].file
        try:
            with path.open("rb") as opened:
                return list(native_parts(opened))
        except OSError as error:
            raise VerifyError(f"{path}: {error.strerror}") from error
        except ElfError as error:
            raise VerifyError(f"{path}: {error}") from error

    def inside(self, arch: str, manifest: Manifest) -> str | None:
        """What is wrong inside a build whose checksums are right: a part of another machine, another stamp."""
        parts = self.native(arch)
        wrong = [str(part) for part in parts if part.machine != arch]
        if wrong:
            return "native files of another machine: " + "; ".join(wrong)
        try:
            with zipfile.ZipFile(self.path / manifest.builds[arch].file) as archive:
                stamp = json.loads(archive.read("runtime/_build.json"))
        except (KeyError, ValueError) as error:
            return f"the build carries no stamp ({error})"
        for member in ("version", "commit", "built_at", "dirty"):
            if stamp.get(member) != getattr(manifest, member):
                said = getattr(manifest, member)
                return f"the manifest says {member} {said!r}, and the build itself {stamp.get(member)!r}"
        return None


@dataclass(frozen=True)
class Web:
    """A control plane (files by ``?arch=``) or a static mirror (files by name), at ``url`` (no slash at the end).

    Redirects are not followed, and neither proxies nor netrc of the environment are used. ``ca_file``: certificates
    to trust.
    """

    url: str
    by_name: bool = False
    ca_file: str | None = None

    @property
    def name(self) -> str:
        return f"{self.url}/{AGENT}"

    def manifest(self) -> Manifest:
        where = f"{self.name}/{FILE_NAME}"
        return _manifest(where, self.get(where).pieces)

    def content(self, arch: str, entry: BuildFile) -> Answer:
        return self.get(f"{self.name}/{entry.file}" if self.by_name else f"{self.name}?arch={arch}")

    def get(self, url: str) -> Answer:
        """Whatever lies at ``url``. Raises VerifyError unless the answer is a 200."""
        session = requests.Session()
        session.trust_env = False
        headers = {"Accept-Encoding": "identity"}
        try:
            answer = session.get(
                url,
                headers=headers,
                timeout=TIMEOUT_S,
                stream=True,
                allow_redirects=False,
                verify=self.ca_file or True,
            )
        except requests.exceptions.RequestException as error:
            session.close()
            raise _failed(url, error) from error
        if answer.status_code != 200:
            words = f"{url} answered with HTTP status {answer.status_code}{_words(answer)}"
            session.close()
            raise VerifyError(words)
        return Answer(
            url,
            _pieces(session, answer, url),
            answer.headers.get("X-Checksum-Md5"),
            answer.headers.get("X-Checksum-Sha256"),
            answer.headers.get("Content-Type", "").lower().startswith("text/html"),
            # A mirror may be any web server; a control plane's answer has them.
            must_have_sums=not self.by_name,
        )


def _pieces(session: requests.Session, answer: requests.Response, url: str) -> Iterator[bytes]:
    try:
        with session, answer:
            yield from answer.iter_content(PIECE)
    except requests.exceptions.RequestException as error:
        raise _failed(url, error) from error


def _failed(url: str, error: requests.exceptions.RequestException) -> VerifyError:
    if isinstance(error, requests.exceptions.ConnectionError | requests.exceptions.Timeout):
        return VerifyError(f"cannot reach {url}: {root_cause(error)}", unreachable=True)
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return VerifyError(f"{url} was cut off: {error}")
    return VerifyError(f"{url}: {error}")


def _words(answer: requests.Response) -> str:
    """What a refusal says: where a redirect leads, or the detail of a problem document (of the first 64 KiB)."""
    if "Location" in answer.headers:
        return f", a redirect to {answer.headers['Location'][:300]}"
    try:
        document = json.loads(next(answer.iter_content(PIECE), b""))
        return f": {document['detail'][:1000]}"
    except (ValueError, KeyError, TypeError, requests.exceptions.RequestException):
        return ""


def _manifest(where: str, pieces: Iterable[bytes]) -> Manifest:
    content = b""
    for piece in pieces:
        content += piece
        if len(content) > MANIFEST_LIMIT:
            raise VerifyError(f"{where}: longer than {MANIFEST_LIMIT} bytes, so it is no manifest")
    try:
        return parse_manifest(content.decode())
    except (ManifestError, UnicodeDecodeError) as error:
        page = ", but a web page" if re.match(rb"\s*<", content) else ""
        raise VerifyError(f"{where}: no manifest{page} ({error})") from error
