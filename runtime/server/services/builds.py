"""What this control plane hands out to nodes that have no agent yet: the builds, and the scripts.

Builds lie in ``builds_dir`` with their manifest; a file is handed out only while it is what its manifest says.
Scripts are rendered from ``templates/``, the one source that the fleet toolkit uses, too.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import jinja2

from runtime.protocol.manifest import ARCHITECTURES, FILE_NAME, BuildFile, Manifest, ManifestError, parse_manifest
from runtime.protocol.problems import Problem

SCRIPTS = ("install-agent.sh", "uninstall-agent.sh")

_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]{1,255}", re.ASCII)
_GUIDE = (
    "make one with `heterofleet artifacts build` on a checkout of the sources, and put the folder's content "
    "(dist/agent/) into {folder}, or name that folder in the setting builds_dir"
)


@dataclass(frozen=True)
class Build:
    """One architecture's file on disk, known to be what ``entry`` says."""

    path: Path
    entry: BuildFile


class Builds:
    """The builds in one folder. Read when asked for, so a new build is handed out at once; safe in threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._checked: dict[Path, tuple[tuple[int, ...], str]] = {}

    def manifest_text(self) -> str:
        """The manifest as it lies there. Raises Problem ``agent_build_missing``."""
        return self._read()[0]

    def manifest(self) -> Manifest:
        """The manifest. Raises Problem ``agent_build_missing``."""
        return self._read()[1]

    def build(self, arch: str) -> Build:
        """The file for ``amd64`` or ``arm64``. Raises Problem: ``unknown_arch``, ``agent_build_missing``."""
        if arch not in ARCHITECTURES:
            found, wanted = repr(arch[:40]), " or ".join(ARCHITECTURES)
            raise Problem("unknown_arch", f"Found the architecture {found}, wanted {wanted}.", known=ARCHITECTURES)
        entry = self.manifest().builds.get(arch)
        if entry is None:
            raise self._missing(f"There is no agent build for {arch} here")
        path = self.folder / entry.file
        try:
            digest = self._digest(path)
        except OSError as error:
            raise self._missing(f"The agent build for {arch} cannot be read ({error.strerror})") from error
        if digest != entry.sha256:
            raise self._missing(f"The agent build for {arch} is not what its manifest says (another sha256)")
        return Build(path, entry)

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

    def _digest(self, path: Path) -> str:
        """The file's sha256, computed anew only when the file changed."""
        stat = path.stat()
        state = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        with self._lock:
            known = self._checked.get(path)
        if known is not None and known[0] == state:
            return known[1]
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        with self._lock:
            self._checked[path] = (state, digest)
        return digest

    def _missing(self, what: str) -> Problem:
        return Problem("agent_build_missing", f"{what}; {_GUIDE.format(folder=self.folder)}.")


def templates_folder() -> Path:
    """``templates/`` of the checkout, else of the installation."""
    beside = Path(__file__).resolve().parents[3] / "templates"
    return beside if beside.is_dir() else Path(sys.prefix) / "share" / "heterofleet" / "templates"


@functools.cache
def environment() -> jinja2.Environment:
    """How templates are rendered, here and by whoever else needs the same bytes. A changed file is read anew."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_folder()),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - shell scripts and units; what goes in is checked before
        keep_trailing_newline=False,
    )


def server_url(public_url: str | None, scheme: str, host: str) -> str:
    """The address that goes into scripts: ``public_url``, else what the request came to.

    Raises Problem ``bad_parameter`` when it has a character that a shell could take for something else.
    """
    if public_url:
        scheme, _, host = public_url.rstrip("/").partition("://")
    if scheme not in ("http", "https") or _HOST.fullmatch(host) is None:
        where = "the setting public_url" if public_url else "the Host header"
        raise Problem("bad_parameter", f"Found {host[:80]!r} in {where}, wanted a host of A-Z a-z 0-9 . : [ ] - only.")
    return f"{scheme}://{host}"


def script(name: str, url: str) -> str:
    """The text of one of ``SCRIPTS`` for nodes that reach this control plane at ``url`` (from server_url)."""
    return environment().get_template(f"{name}.j2").render(server_url=url) + "\n"
