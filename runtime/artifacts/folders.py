"""Writing into a folder that others read meanwhile: one writer at a time, each file whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from runtime.artifacts.errors import BuildError

SCRATCH = ".heterofleet-writing-"
"""What is being written has a name that begins like this, so that what a killed writer left is known for it."""
WAIT_S = 600.0
"""How long one writer waits for another."""
LOOK_AGAIN_S = 0.2

FOLDER_MODE = 0o755

_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL)
"""What a file system says that cannot lock a folder (NFS)."""


@contextlib.contextmanager
def only_writer(folder: Path, progress: Callable[[str], None], wait_s: float = WAIT_S) -> Iterator[None]:
    """Be the only one that writes into ``folder``, which is made when it is missing.

    The lock is the kernel's and on the folder itself: it ends with its holder, and no file of it lies among those
    that are handed out. Raises BuildError when another writer is not done after ``wait_s`` seconds.
    """
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(handle, folder, progress, wait_s)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, progress: Callable[[str], None], wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    said = False
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BuildError(f"another program still writes into {folder} after {wait_s:g} s") from None
            if not said:
                progress(f"another program writes into {folder}: waiting for it")
            said = True
            time.sleep(LOOK_AGAIN_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return progress(f"{folder} is on a file system without locks: see to it that nobody else writes there")


def make_folder(folder: Path) -> None:
    """``folder`` and what it lies in, readable by all whatever the umask is; a folder that exists stays as it is."""
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        path.chmod(FOLDER_MODE)


def clear_scratch(folder: Path) -> None:
    """Remove what a writer left in ``folder`` that was killed. Only for who holds :func:`only_writer`."""
    for left in folder.glob(f"{SCRATCH}*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def need_space(folder: Path, size: int) -> None:
    """Raises BuildError when less than ``size`` bytes (and a little) are free where ``folder`` lies."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < size + (1 << 20):
        raise BuildError(
            f"the disk of {folder} has {free / 1e6:.1f} MB free and {size / 1e6:.1f} MB are to be written; "
            "free some space; nothing was changed"
        )


def words(error: OSError) -> str:
    """What the operating system refused, for the person at the terminal."""
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"
