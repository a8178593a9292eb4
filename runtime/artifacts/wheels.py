"""The wheels that go into builds: pinned with hashes, kept in a cache, fetched only when missing.

The pins are ``agent-requirements.txt`` and ``server-requirements.txt`` beside this module; ``python -m
runtime.artifacts.wheels [agent|server]`` writes one anew from the newest releases that every supported Python takes.
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from runtime.artifacts.children import last_lines, run
from runtime.artifacts.errors import BuildError
from runtime.artifacts.recipe import AGENT, SERVER, Recipe

LOCK = Path(__file__).with_name("agent-requirements.txt")
PYTHONS = AGENT.pythons
"""The interpreters that one agent file runs on."""

PLATFORMS = {"amd64": "manylinux2014_x86_64", "arm64": "manylinux2014_aarch64"}

LISTING = "wheels.txt"
"""Beside the wheels in the cache: the names of all that were fetched."""
DEADLINE_S = 600.0
"""For each call of pip."""

_PURE = frozenset({"charset-normalizer"})
"""Distributions whose compiled wheels are not worth their size here; their plain one is pinned."""

_HEADER = """\
# What goes into the {name}'s file beside its own code, one release for every supported Python.
# Written by `python -m runtime.artifacts.wheels{word}`; never by hand.
"""


def cache_folder() -> Path:
    """Where wheels and pex keep what they fetched: ``$XDG_CACHE_HOME/heterofleet``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "heterofleet"


def locked_names(lock: str) -> list[str]:
    """``name==version`` of each pin."""
    return re.findall(r"^([A-Za-z0-9._\[\]-]+==\S+)", lock, re.MULTILINE)


def locked_hashes(lock: str) -> set[str]:
    """The sha256 of every wheel that may be used."""
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock))


def wheels_for(arch: str, progress: Callable[[str], None], lock: str, pythons: Sequence[str] = PYTHONS) -> list[Path]:
    """The wheels of one architecture that the text ``lock`` pins, sorted by name; from the cache where it is whole.

    What lies in the cache and is not what the lock pins is not used: the wheels are fetched again. Raises BuildError
    when they cannot be fetched, or are something else.
    """
    some = "" if tuple(pythons) == PYTHONS else f"-{'-'.join(pythons)}"
    folder = cache_folder() / "wheels" / f"{hashlib.sha256(lock.encode()).hexdigest()[:16]}-{arch}{some}"
    fault = _fault(folder, lock)
    if fault is not None:
        progress(f"{arch}: fetching wheels" if not folder.exists() else f"{arch}: {fault}; fetching wheels again")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            pins = Path(scratch) / "pins.txt"
            pins.write_text(lock, "utf-8")
            for number, python in enumerate(pythons, 1):
                progress(f"{arch}: wheels for Python {python} ({number} of {len(pythons)})")
                _pip_download(Path(scratch), arch, python, ["--require-hashes", "-r", str(pins)])
            _publish(Path(scratch), folder, lock)
        fault = _fault(folder, lock)
        if fault is not None:
            raise BuildError(f"{fault}, also after fetching it again; nothing was built")
    return sorted(folder.glob("*.whl"))


def _fault(folder: Path, lock: str) -> str | None:
    """Why the wheels in ``folder`` cannot be used; None when each is pinned, and none of those fetched is missing."""
    try:
        listed = set((folder / LISTING).read_text("utf-8").split())
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.whl")}
    except (OSError, UnicodeDecodeError):
        return f"{folder} is not whole"
    allowed = locked_hashes(lock)
    wrong = sorted(name for name, digest in found.items() if digest not in allowed)
    if wrong:
        return f"{folder / wrong[0]} is not what the lock file pins"
    if set(found) != listed or not set(locked_names(lock)) <= {_pin(Path(name)) for name in found}:
        return f"{folder} is not whole"
    return None


def _publish(scratch: Path, folder: Path, lock: str) -> None:
    """Put the wheels in place of whatever lies there; another build may do the same at this moment."""
    whole = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for wheel in scratch.glob("*.whl"):
            shutil.move(wheel, whole / wheel.name)
        (whole / LISTING).write_text("".join(f"{path.name}\n" for path in sorted(whole.glob("*.whl"))), "utf-8")
        whole.chmod(0o755)
        for _ in range(3):
            if folder.exists() and _fault(folder, lock) is None:
                return  # another build was first, with the same wheels
            with contextlib.suppress(FileNotFoundError):
                folder.rename(Path(tempfile.mkdtemp(dir=scratch)) / "before")
            with contextlib.suppress(OSError):
                whole.rename(folder)
                return
        raise BuildError(f"{folder} is changed by somebody else all the time; build again")
    finally:
        shutil.rmtree(whole, ignore_errors=True)


def _pip_download(into: Path, arch: str, python: str, what: Iterable[str], platform: str | None = None) -> None:
    tag = "cp" + python.replace(".", "")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--only-binary", ":all:", "--platform", platform or PLATFORMS[arch], "--python-version", python]
    command += ["--implementation", "cp", "--abi", tag, "--abi", "abi3", "--abi", "none", "--dest", str(into), *what]
    done = run(command, f"pip (fetching the {arch} wheels for Python {python})", deadline_s=DEADLINE_S)
    if done.returncode != 0:
        said = last_lines(done.stderr, 6)
        raise BuildError(f"pip could not fetch the {arch} wheels for Python {python}:\n{said}")


def write_lock(setup_cfg: Path, progress: Callable[[str], None], recipe: Recipe = AGENT) -> None:
    """Resolve the recipe's extra for the oldest Python, and pin the wheels of every Python and architecture."""
    config = configparser.ConfigParser()
    config.read_string(setup_cfg.read_text("utf-8"))
    wanted = config["options.extras_require"][recipe.extra].split()
    oldest = recipe.pythons[0]
    hashes: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        progress(f"resolving {', '.join(wanted)} for Python {oldest}")
        _pip_download(Path(scratch), "arm64", oldest, wanted)  # of the two it has fewer wheels
        pins = sorted(_pin(wheel) for wheel in Path(scratch).glob("*.whl"))
    plain = [pin for pin in pins if pin.partition("==")[0] in _PURE]
    native = [pin for pin in pins if pin not in plain]
    with tempfile.TemporaryDirectory() as scratch:
        for arch in PLATFORMS:
            for python in recipe.pythons:
                progress(f"{arch}, Python {python}")
                _pip_download(Path(scratch), arch, python, ["--no-deps", *native])
                _pip_download(Path(scratch), arch, python, ["--no-deps", *plain], platform="any")
        for wheel in Path(scratch).glob("*.whl"):
            hashes.setdefault(_pin(wheel), set()).add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    lines = []
    for pin in sorted(hashes):
        lines.append(" \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(hashes[pin]))]))
    head = _HEADER.format(name=recipe.name, word="" if recipe is AGENT else f" {recipe.name}")
    lock_file = Path(__file__).with_name(Path(recipe.lock).name)
    lock_file.write_text(head + "\n".join(lines) + "\n", "utf-8")


def _pin(wheel: Path) -> str:
    name, version = wheel.name.split("-")[:2]
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


if __name__ == "__main__":
    write_lock(
        Path(__file__).parents[2] / "setup.cfg",
        lambda line: print(line, file=sys.stderr),  # noqa: T201
        SERVER if sys.argv[1:] == ["server"] else AGENT,
    )
