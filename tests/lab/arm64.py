"""An arm64 Python on this machine: Debian's own packages unpacked beside each other, run under user-mode emulation.

Nothing of it touches the machine's packages: apt works in folders of its own, with an architecture of its own.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from tests.lab import places
from tests.lab.process import LabError, run

EMULATOR = "qemu-aarch64-static"
PYTHON = "python3.11"

# The emulator loads programs for itself only: what an emulated Python starts is started by this machine's kernel,
# which knows no arm64. So its place is taken by a script that calls the emulator; the name it was called by is
# passed on, since a virtual environment is found by it.
_WRAPPER = """\
#!/bin/sh
exec {emulator} -L {root} -0 "$0" {root}/usr/bin/{python}-arm64 "$@"
"""


def python(cache: Optional[Path] = None) -> Path:
    """The program to start: a Python 3.11 that believes to run on arm64. Made once, kept in the lab's cache.

    Raises LabError with what is missing: the emulator, apt, or the package archive.
    """
    emulator = shutil.which(EMULATOR)
    if emulator is None:
        raise LabError(f"{EMULATOR} is not installed: `make prepare` brings it (package qemu-user-static)")
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise LabError("no apt-get and dpkg-deb here: an arm64 Python is made from Debian's packages")
    root = (cache or places.cache()) / "arm64-python"
    program = root / "usr/bin" / PYTHON
    with places.exclusive():
        if not program.exists():
            _make(root, emulator)
    return program


def _make(root: Path, emulator: str) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".arm64-") as scratch:
        made = Path(scratch) / "root"
        made.mkdir(mode=0o755)
        for package in _download(Path(scratch)):
            run(["dpkg-deb", "-x", package, made])
        real = made / "usr/bin" / PYTHON
        real.rename(real.with_name(f"{PYTHON}-arm64"))
        real.write_text(_WRAPPER.format(emulator=emulator, root=root, python=PYTHON))
        real.chmod(0o755)
        made.rename(root)


def _download(scratch: Path) -> list[Path]:
    """Python and all that it needs, for arm64, from the archive that this machine's apt uses."""
    for name in ("lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": scratch,
        "Dir::State::lists": scratch / "lists",
        "Dir::State::status": scratch / "status",
        "Dir::State::extended_states": scratch / "extended_states",
        "Dir::Cache": scratch / "cache",
        "Dir::Log": scratch,
        "DPkg::Post-Invoke": "",
        "Debug::NoLocking": "1",
    }
    apt = ["apt-get", "--quiet", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    run([*apt, "update"], timeout=300)
    run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", PYTHON], timeout=300)
    return sorted((scratch / "cache/archives").glob("*.deb"))


def start(program: Path, *words: object, env: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run the arm64 ``program`` with exactly ``env``; no program of this machine is on its PATH."""
    return run([program, *map(str, words)], env={"PATH": "/nonexistent", **env}, timeout=timeout, check=False)
