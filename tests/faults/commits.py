"""Journal commits as they happen, from outside: the agent stands still after each until it is told to go on.

A small library (``commit_watch.c``) is preloaded into the agent's unit by a drop-in, as libfaketime would be;
nothing of it is in the product. What a commit said is read from a copy of the journal's files.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from runtime.agent.tasks.journal import open_journal
from runtime.agent.tasks.records import ClaimRecord
from tests.lab import Node, places
from tests.lab.cards.build import compiled

LIBRARY = "commit-watch.so"
SOCKET = "commits.sock"
ENVIRONMENT = {"LD_PRELOAD": f"{places.CARDS_FOLDER}/{LIBRARY}", "HF_COMMITS": f"{places.CARDS_FOLDER}/{SOCKET}"}
STATE_DIR = "/var/lib/heterofleet/agent"
FILES = ("journal.db", "journal.db-wal")  # without -shm: what was just written is not in that index yet


class Commits:
    """``on_commit()`` is called while the agent of ``node`` waits behind a commit, in the commits' order."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.on_commit: Callable[[], None] = lambda: None
        self._root: Path | None = None  # the agent's state folder, through the node's first process
        folder = node.cards.path.parent
        self._path = folder / SOCKET
        source = Path(__file__).with_name("commit_watch.c")
        library = compiled(LIBRARY, [source], ["-shared", "-fPIC", "-ldl"])
        if not (folder / LIBRARY).exists() or (folder / LIBRARY).read_bytes() != library.read_bytes():
            places.write_atomically(folder / LIBRARY, library.read_bytes(), 0o755)
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    def claims(self) -> list[ClaimRecord]:
        """What the journal holds at this commit."""
        if self._root is None or not self._root.exists():
            self._root = Path(f"/proc/{self.node.pid}/root{STATE_DIR}")
        with tempfile.TemporaryDirectory() as folder:
            for name in FILES:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(self._root / name, Path(folder, name))
            journal = open_journal(Path(folder))
            try:
                return journal.claims()
            finally:
                journal.close()

    def _serve(self) -> None:
        while True:
            try:
                agent, _ = self._listener.accept()
            except OSError:
                return
            with agent, contextlib.suppress(OSError):
                self.on_commit()
                agent.sendall(b".")

    def close(self) -> None:
        """The agent goes on without us."""
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        (self._path.parent / LIBRARY).unlink(missing_ok=True)
