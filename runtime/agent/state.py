"""The state folder: made, held by one agent at a time, written so that a power cut leaves old or new."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

LOCK_FILE = "agent.lock"


class StateError(Exception):
    """The state folder cannot be written."""


def make_state_dir(state_dir: Path) -> None:
    """The folder, mode 0700, with its parents; StateError when that fails."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(unwritable(state_dir, error)) from None


class StateLock:
    """Holds the state folder for one agent; StateError when another has it."""

    def __init__(self, state_dir: Path) -> None:
        path = state_dir / LOCK_FILE
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"state_dir: another agent runs with {state_dir}; stop it first") from None
        except OSError as error:
            raise StateError(f"state_dir: {path}: {error.strerror}") from None

    def release(self) -> None:
        os.close(self._descriptor)


def write_durably(path: Path, value: dict[str, Any]) -> None:
    """Replace ``path`` by the JSON of ``value``, mode 0600, synced with its folder; StateError when it fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(json.dumps(value, indent=1).encode() + b"\n")
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StateError(unwritable(path, error)) from None


def unwritable(path: Path, error: OSError) -> str:
    hint = {
        errno.ENOSPC: "free some space",
        errno.EROFS: "mount it writable",
        errno.EACCES: "run the agent as root, or set state_dir to a folder of its own",
    }.get(error.errno or 0, "set state_dir to a folder that can be written")
    return f"state_dir: {path}: {error.strerror}; {hint}"
