"""A file on this machine whose writers get stuck in the kernel (state D, deaf to ``kill -9``).

An ext4 image, mounted through a loop device and frozen by `fsfreeze`: that is how a dying card looks to
the program that asks it, and nothing in user space can imitate it. Thawing lets every writer go on.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.lab import places
from tests.lab.process import run


@contextlib.contextmanager
def stuck_file() -> Iterator[Path]:
    """A path: opening it for writing hangs in the kernel until the block ends.

    End what you started on it after the block: a writer is let go first, then the mount is taken away.
    """
    holder = Path(tempfile.mkdtemp(prefix="stuck-", dir=places.make_folder(places.state())))
    image, mount = holder / "image", holder / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    try:
        run(["mkfs.ext4", "-q", "-F", image])
        run(["mount", "-o", "loop", image, mount])
        (mount / "file").touch()
        os.sync()
        run(["fsfreeze", "-f", mount])
        yield mount / "file"
    finally:
        _release(holder)


def release_all() -> None:
    """Thaw and unmount what a test that was killed has left behind."""
    for holder in places.state().glob("stuck-*"):
        _release(holder)


def _release(holder: Path) -> None:
    mount = holder / "mount"
    if mount.is_mount():
        run(["fsfreeze", "-u", mount], check=False)
        # Lazily: a writer that was just let go may still hold the file for a moment.
        run(["umount", "-l", mount], check=False)
    (holder / "image").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        mount.rmdir()
        holder.rmdir()
