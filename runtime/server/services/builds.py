"""What this control plane hands out to nodes that have no agent yet: the builds, and its address in the scripts.

Builds lie in ``builds_dir`` with their manifest; a file is handed out only while it is what its manifest says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO

from runtime.artifacts.elf import ElfError, parts_if_archive
from runtime.artifacts.scripts import AddressForScriptsError, address
from runtime.protocol.manifest import (
    ARCHITECTURES,
    FILE_NAME,
    BuildFile,
    Checksums,
    Manifest,
    ManifestError,
    checksums,
    parse_manifest,
    pieces,
)
from runtime.protocol.problems import Problem
from runtime.server.files import Checked

_GUIDE = (
    "make one with `heterofleet artifacts build` on a checkout of the sources, and put the folder's content "
    "(dist/agent/) into {folder}, or name that folder in the setting builds_dir"
)


@dataclass(frozen=True)
class Build:
    """One architecture's file, open, and known to be what ``entry`` says. Whoever asked for it closes it."""

    opened: IO[bytes]
    entry: BuildFile


@dataclass(frozen=True)
class Contents:
    """What a file has: checksums, and the machines of its native parts; ``broken`` when these cannot be read."""

    sums: Checksums
    machines: frozenset[str]
    broken: str | None


def _look(opened: IO[bytes]) -> Contents:
    sums = checksums(pieces(opened))
    try:
        return Contents(sums, frozenset(part.machine for part in parts_if_archive(opened)), None)
    except ElfError as error:
        return Contents(sums, frozenset(), str(error))


class _Gone(Exception):
    """The file that the manifest names cannot be read."""


class Builds:
    """The builds in one folder. Read when asked for, so a new build is handed out at once; safe in threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checked = Checked(_look)

    def manifest_text(self) -> str:
        """The manifest as it lies there. Raises Problem ``agent_build_missing``."""
        return self._read()[0]

    def manifest(self) -> Manifest:
        """The manifest. Raises Problem ``agent_build_missing``."""
        return self._read()[1]

    def build(self, arch: str) -> Build:
        """The file for ``amd64`` or ``arm64``. Raises Problem: ``unknown_arch``, ``agent_build_missing``."""
        if arch not in ARCHITECTURES:
            wanted = " or ".join(ARCHITECTURES)
            raise Problem(
                "unknown_arch", f"Found the architecture {arch[:40]!r}, wanted {wanted}.", known=ARCHITECTURES
            )
        try:
            return self._open(arch)
        except _Gone:
            pass  # exchanged between its manifest and the file: the manifest of now names another one
        try:
            return self._open(arch)
        except _Gone as error:
            raise self._missing(f"The agent build for {arch} cannot be read ({error})") from error

    def _open(self, arch: str) -> Build:
        entry = self.manifest().builds.get(arch)
        if entry is None:
            raise self._missing(f"There is no agent build for {arch} here")
        opened: IO[bytes] | None = None
        try:
            opened = (self.folder / entry.file).open("rb")
            found = self._checked.of(opened)
        except OSError as error:
            if opened is not None:
                opened.close()
            raise _Gone(error.strerror) from error
        fault = _fault(found, entry, arch)
        if fault is not None:
            opened.close()
            raise self._missing(f"The agent build for {arch} is {fault}")
        return Build(opened, entry)

    def _read(self) -> tuple[str, Manifest]:
        try:
            text = (self.folder / FILE_NAME).read_text("utf-8")
            return text, parse_manifest(text)
        except FileNotFoundError as error:
            raise self._missing("There are no agent builds here") from error
        except OSError as error:
            raise self._missing(f"The manifest of the agent builds cannot be read ({error.strerror})") from error
        except (ManifestError, UnicodeDecodeError) as error:
            raise self._missing(f"The manifest of the agent builds is wrong ({error})") from error

    def _missing(self, what: str) -> Problem:
        return Problem("agent_build_missing", f"{what}; {_GUIDE.format(folder=self.folder)}.")


def _fault(found: Contents, entry: BuildFile, arch: str) -> str | None:
    """Why a file is not handed out for ``arch``; None when it is."""
    for name in ("sha256", "md5"):
        if getattr(found.sums, name) != getattr(entry, name):
            return f"not what its manifest says (another {name})"
    if found.broken is not None:
        return f"broken ({found.broken})"
    if found.machines - {arch}:
        return f"for another machine ({', '.join(sorted(found.machines))})"
    return None


def server_url(public_url: str | None, scheme: str, host: str) -> str:
    """The address that goes into scripts: ``public_url``, else what the request came to.

    Raises Problem ``bad_parameter`` when it has a character that a shell could take for something else.
    """
    try:
        return address(public_url or f"{scheme}://{host}")
    except AddressForScriptsError as error:
        where = "the setting public_url" if public_url else "the Host header"
        raise Problem("bad_parameter", f"{error}, in {where}.") from error
