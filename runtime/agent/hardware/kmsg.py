"""New lines of the kernel log, without ever waiting for one.

``/dev/kmsg`` (kernel documentation, ABI/testing/dev-kmsg): each read gives one record,
``priority,sequence,microseconds,flags;text`` with continuation lines that begin with a blank; a reader that was
overtaken gets EPIPE once and goes on with what is there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

log = logging.getLogger(__name__)

KMSG = Path("/dev/kmsg")
RECORD_LIMIT = 8192
RECORDS_A_LOOK = 20_000
"""More than the ring of any kernel holds: a machine that logs faster than it is read is let go on."""


class KernelLog:
    """The first look gives what the ring still holds of this start of the machine, each later one what came since.

    Without the right to read it (not root, a container) there are no lines, and that is said once.
    """

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._file: Optional[int] = None
        self._refused = False

    def lines(self) -> Iterator[str]:
        file = self._open() if self._file is None else self._file
        if file is None:
            return
        for _ in range(RECORDS_A_LOOK):
            try:
                record = os.read(file, RECORD_LIMIT)
            except BrokenPipeError:
                continue
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("%s: %s", self._path, error.strerror)
                self.close()
                return
            if not record:
                return
            for line in record.decode("utf-8", "replace").splitlines():
                if not line.startswith(" "):
                    yield line.partition(";")[2]

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> Optional[int]:
        if self._refused:
            return None
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._refused = True
            log.info("the kernel log is not read, so no Xid is seen: %s: %s", self._path, error.strerror)
            return None
        return self._file
