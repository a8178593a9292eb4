"""A folder of a run's own, for this user alone, which goes with the run.

Ansible's and ansible-runner's files lie in it: what they leave there (settings, arguments, the environment) is nobody
else's to read, and nothing of it stays. A run that was killed leaves its folder; the next one takes that away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "fleet-"
LOCK = "lock"
SOCKET_ROOM = 104 - 30
"""The longest path of a folder for ssh's sockets: the kernel takes 107 characters, ssh adds its own."""


@dataclass(frozen=True)
class Folder:
    """``runner``: what ansible-runner works in. ``sockets``: of ssh. ``stop``: made, no further host begins."""

    root: Path
    sockets: Path

    @property
    def runner(self) -> Path:
        return self.root / "runner"

    @property
    def stop(self) -> Path:
        return self.root / "stop"


@contextlib.contextmanager
def private_folder(environ: Mapping[str, str]) -> Iterator[Folder]:
    base = base_folder(environ)
    sweep(base)
    root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    with (root / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in ("runner", "tmp", "ssh"):
            (root / name).mkdir(0o700)
        sockets = root / "ssh"
        elsewhere = len(str(sockets)) > SOCKET_ROOM
        if elsewhere:
            sockets = Path(tempfile.mkdtemp(prefix="hf-ssh-", dir="/tmp"))
        try:
            yield Folder(root, sockets)
        finally:
            if elsewhere:
                shutil.rmtree(sockets, ignore_errors=True)
            shutil.rmtree(root, ignore_errors=True)


def base_folder(environ: Mapping[str, str]) -> Path:
    """The user's runtime folder (in memory, gone at logout) where it is his alone, else one below the home folder."""
    given = environ.get("XDG_RUNTIME_DIR")
    if given and _mine_alone(Path(given)):
        base = Path(given) / "heterofleet-fleet"
    else:
        base = Path(environ.get("HOME") or Path.home()) / ".cache" / "heterofleet" / "fleet"
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    base.chmod(0o700)
    return base


def sweep(base: Path) -> None:
    """Take away what runs left that were killed: nobody holds their lock."""
    for old in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (old / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)


def _mine_alone(place: Path) -> bool:
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
