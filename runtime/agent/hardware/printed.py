"""What a child prints, read from its pipes as it comes: bounded, and without ever waiting for the child itself."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from typing import Optional

MIB = 1024 * 1024
OUTPUT_LIMIT = 4 * MIB
"""Of each of the two streams."""
POLL_S = 0.05
"""How often it is looked whether a child has ended, while something keeps its output open."""


class Printed:
    """Both streams of a child; ``words`` go to its standard input, which is then closed."""

    def __init__(self, child: subprocess.Popen[bytes], words: bytes) -> None:
        assert child.stdout is not None and child.stderr is not None
        self._child = child
        self._pipes = [child.stdout, child.stderr]
        self._parts: list[list[bytes]] = [[], []]
        self._left = [OUTPUT_LIMIT, OUTPUT_LIMIT]
        self._selector = selectors.DefaultSelector()
        for number, pipe in enumerate(self._pipes):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, number)
        if child.stdin is not None:
            # Few enough to fit into an empty pipe; a child that reads none of them is no reason to fail.
            with contextlib.suppress(OSError):
                os.write(child.stdin.fileno(), words)
            child.stdin.close()

    @property
    def too_much(self) -> bool:
        return min(self._left) < 0

    @property
    def held_open(self) -> bool:
        """Whether something may still print: the child, or what it has started."""
        return bool(self._selector.get_map())

    def until_end(self, deadline: float) -> Optional[int]:
        """The child's status; None when it has none at the deadline, or prints too much. With the child's own end all
        is read that counts, whoever keeps the pipes open."""
        while not self.too_much:
            status = self._child.poll()
            if status is not None:
                while self._read(0) and not self.too_much:
                    pass
                return status
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if self.held_open:
                self._read(min(left, POLL_S))
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(left)
        return None

    def texts(self) -> tuple[str, str]:
        """Standard output and error, decoded with replacement."""
        out, err = (b"".join(parts).decode("utf-8", "replace") for parts in self._parts)
        return out, err

    def close(self) -> None:
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()

    def _read(self, wait_s: float) -> bool:
        """What is there within ``wait_s``; False when nothing was."""
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            number: int = key.data
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
            self._parts[number].append(data)
            self._left[number] -= len(data)
        return bool(ready)
