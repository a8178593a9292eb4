"""The wheels that go into the agent's file: pinned with hashes, kept in a cache, fetched only when missing.

The pins are ``agent-requirements.txt`` beside this module; ``python -m runtime.artifacts.wheels`` writes it
anew from the newest releases that every supported Python takes.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from runtime.artifacts.errors import BuildError

LOCK = Path(__file__).with_name("agent-requirements.txt")
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
"""The interpreters that one agent file runs on."""

PLATFORMS = {"amd64": "manylinux2014_x86_64", "arm64": "manylinux2014_aarch64"}

_PURE = frozenset({"charset-normalizer"})
"""Distributions whose compiled wheels are not worth their size here; their plain one is pinned."""

_HEADER = """\
# What goes into the agent's file beside its own code, one release for every supported Python.
# Written by `python -m runtime.artifacts.wheels`; never by hand.
"""


def cache_folder() -> Path:
    """Where wheels and pex keep what they fetched: ``$XDG_CACHE_HOME/heterofleet``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "heterofleet"


def locked_names(lock: str) -> list[str]:
    """``name==version`` of each pin."""
    return re.findall(r"^([A-Za-z0-9._-]+==\S+)", lock, re.MULTILINE)


def locked_hashes(lock: str) -> set[str]:
    """The sha256 of every wheel that may be used."""
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock))


def wheels_for(arch: str, progress: Callable[[str], None], lock_file: Path = LOCK) -> list[Path]:
    """The wheels of one architecture, sorted by name; from the cache where they are whole.

    Raises BuildError when they cannot be fetched or are not what the lock says.
    """
    lock = lock_file.read_text("utf-8")
    folder = cache_folder() / "wheels" / f"{hashlib.sha256(lock.encode()).hexdigest()[:16]}-{arch}"
    if not folder.is_dir():
        progress(f"{arch}: fetching wheels")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            for python in PYTHONS:
                _pip_download(Path(scratch), arch, python, ["--require-hashes", "-r", str(lock_file)])
            _publish(Path(scratch), folder)
    wheels = sorted(folder.glob("*.whl"))
    allowed = locked_hashes(lock)
    for wheel in wheels:
        if hashlib.sha256(wheel.read_bytes()).hexdigest() not in allowed:
            raise BuildError(f"{wheel} is not what {lock_file.name} pins: remove {folder} and build again")
    return wheels


def _publish(scratch: Path, folder: Path) -> None:
    whole = Path(tempfile.mkdtemp(dir=folder.parent))
    for wheel in scratch.glob("*.whl"):
        shutil.move(wheel, whole / wheel.name)
    whole.chmod(0o755)
    try:
        whole.rename(folder)
    except OSError:
        shutil.rmtree(whole)
        if not folder.is_dir():  # else another build was first, with the same wheels
            raise


def _pip_download(into: Path, arch: str, python: str, what: Iterable[str], platform: str | None = None) -> None:
    tag = "cp" + python.replace(".", "")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--platform", platform or PLATFORMS[arch], "--python-version", python]
    command += ["--implementation", "cp", "--abi", tag, "--abi", "abi3", "--abi", "none", "--dest", str(into), *what]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        words = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        raise BuildError(f"pip could not fetch the {arch} wheels for Python {python}:\n" + "\n".join(words[-6:]))


def write_lock(setup_cfg: Path, progress: Callable[[str], None], lock_file: Path = LOCK) -> None:
    """Resolve the ``agent`` extra for the oldest Python, and pin the wheels of every Python and architecture."""
    config = configparser.ConfigParser()
    config.read_string(setup_cfg.read_text("utf-8"))
    wanted = config["options.extras_require"]["agent"].split()
    hashes: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        progress(f"resolving {', '.join(wanted)} for Python {PYTHONS[0]}")
        _pip_download(Path(scratch), "amd64", PYTHONS[0], wanted)
        pins = sorted(_pin(wheel) for wheel in Path(scratch).glob("*.whl"))
    plain = [pin for pin in pins if pin.partition("==")[0] in _PURE]
    native = [pin for pin in pins if pin not in plain]
    with tempfile.TemporaryDirectory() as scratch:
        for arch in PLATFORMS:
            for python in PYTHONS:
                progress(f"{arch}, Python {python}")
                _pip_download(Path(scratch), arch, python, ["--no-deps", *native])
                _pip_download(Path(scratch), arch, python, ["--no-deps", *plain], platform="any")
        for wheel in Path(scratch).glob("*.whl"):
            hashes.setdefault(_pin(wheel), set()).add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    lines = []
    for pin in sorted(hashes):
        lines.append(" \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(hashes[pin]))]))
    lock_file.write_text(_HEADER + "\n".join(lines) + "\n", "utf-8")


def _pin(wheel: Path) -> str:
    name, version = wheel.name.split("-")[:2]
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


if __name__ == "__main__":
    write_lock(Path(__file__).parents[2] / "setup.cfg", lambda line: print(line, file=sys.stderr))  # noqa: T201
