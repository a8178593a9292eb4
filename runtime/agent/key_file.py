"""The system key out of a file of its own: what may be a key, and what may be such a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from runtime.protocol.credentials import BOM, fits_a_header
from runtime.protocol.problems import Fault

LIMIT = 4096
"""Bytes: what is larger is another file, named by mistake."""


class KeyFileError(ValueError):
    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"found {found}, wanted {wanted}")
        self.found = found
        self.wanted = wanted


def read_key_file(path: Path, warnings: list[str]) -> str:
    """The key in ``path``, without its one newline at the end; KeyFileError says what is wrong, never the key."""
    try:
        with path.open("rb") as handle:
            data = handle.read(LIMIT + 1)
            mode = os.fstat(handle.fileno()).st_mode
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}", "a file with the system key, readable by the agent") from None
    if stat.S_IMODE(mode) & 0o077:
        warnings.append(f"api_key_file: {path} is open to others (mode {stat.S_IMODE(mode):04o}); wanted 0600")
    if len(data) > LIMIT:
        raise KeyFileError(f"{path} with more than {LIMIT} bytes", "a file with the key alone")
    if data.startswith(BOM):
        raise KeyFileError(f"{path} that begins with a byte order mark", "printable ASCII: save it as plain text")
    if data.endswith(b"\r\n"):
        raise KeyFileError(
            f"{path} ends with a carriage return (saved with Windows line ends)",
            "the key and at most one newline: save it with Unix line ends",
        )
    if data.endswith(b"\n"):
        data = data[:-1]
    try:
        key = data.decode("ascii")
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} with bytes that are not ASCII", "a key of printable ASCII") from None
    for fault in key_faults("api_key_file", key):
        raise KeyFileError(f"{path} with {fault.found}", fault.wanted)
    return key


def key_faults(path: str, key: str) -> list[Fault]:
    """What is wrong with a key, wherever it came from; ``path``: of the setting that names it."""
    if not key:
        return [Fault(path, "an empty key", "the system key")]
    if not fits_a_header(key):
        return [Fault(path, "a key with blanks, line breaks or characters beyond ASCII", "printable ASCII, no blanks")]
    return []
