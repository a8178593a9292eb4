"""The file behind an SQLite database: that it is still the one that was opened, and that one server serves it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO

from runtime.protocol.problems import Problem
from runtime.server.exit_codes import EXIT_CANNOT_WRITE, EXIT_UNAVAILABLE
from runtime.server.store.errors import StoreError


class SqliteFile:
    """An open file lives on without its name: what is written to it then is gone with the process."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).resolve()
        self._known: tuple[int, int] | None = None
        self._held: IO[str] | None = None

    def remember(self) -> None:
        """The file that has the name now is the database."""
        self._known = self._identity()

    def check(self) -> None:
        """Raise Problem database_busy when the name is another file's by now, or nobody's."""
        if self._known is not None and self._identity() != self._known:
            raise Problem(
                "database_busy",
                f"The database file {self.path} was removed or replaced while the server ran, so nothing can be "
                "stored or read; put it back, or restart the server to take what is there.",
                retry_after=10,
            )

    def hold(self) -> None:
        """Be the one process that serves this file, until :meth:`release`. Raises StoreError (69, 73)."""
        if self._held is not None:
            return
        lock = Path(f"{self.path}.serving")
        try:
            lock.touch(mode=0o600)
            file = lock.open("a+")  # stays open: the lock lives as long
        except OSError as error:
            raise StoreError(
                EXIT_CANNOT_WRITE,
                f"The file {lock} cannot be written ({error.strerror}); give the server's user the folder.",
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(20).strip() or "unknown"
            file.close()
            raise StoreError(
                EXIT_UNAVAILABLE,
                f"The database file {self.path} is served by another process ({holder}); stop that one, or set "
                "database_url to a PostgreSQL server, which several processes can share.",
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name in it
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        self._held = file

    def release(self) -> None:
        """Another process may serve the file."""
        if self._held is not None:
            with contextlib.suppress(OSError):
                self._held.close()
            self._held = None

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino
