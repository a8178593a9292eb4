"""Secrets at rest: sealed with a key that lives in a file beside the database, never in it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import stat
import threading
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet, InvalidToken

from runtime.server.exit_codes import EXIT_CANNOT_WRITE, EXIT_CONFIGURATION
from runtime.server.store.errors import StoreError


class VaultError(Exception):
    """A sealed value cannot be opened: it was sealed with another key, or it was changed."""


class Vault:
    """Seals JSON values. The key file (0600) is made at first use; whoever loses it loses the sealed values."""

    def __init__(self, key_path: Path) -> None:
        self.key_path = key_path
        self._lock = threading.Lock()
        self._fernet: Fernet | None = None
        self._digest_key = b""

    def load(self, *, make: bool = True) -> None:
        """Read the key; make it where there is none, unless ``make`` is False: what was sealed needs the old one.

        Raises StoreError when the file cannot be read, written or understood, or is open to others.
        """
        with self._lock:
            if self._fernet is not None:
                return
            try:
                key = _read_or_make(self.key_path) if make else _read(self.key_path)
            except FileNotFoundError:
                raise StoreError(
                    EXIT_CONFIGURATION,
                    f"The key file {self.key_path} is missing, and the database holds secrets that were sealed with "
                    "it; put the file that belongs to this database back, or name it in secret_key_file.",
                ) from None
            except _OpenToOthers as error:
                raise StoreError(
                    EXIT_CONFIGURATION,
                    f"The key file {self.key_path} is open to others (mode {error}), and it opens every secret in "
                    f"the database: chmod 600 {self.key_path}",
                ) from None
            except OSError as error:
                raise StoreError(
                    EXIT_CANNOT_WRITE,
                    f"The key file {self.key_path} cannot be read or made ({error.strerror}); the server's user "
                    "needs to own it.",
                ) from None
            try:
                fernet = Fernet(key)
            except ValueError:
                raise StoreError(
                    EXIT_CONFIGURATION,
                    f"The key file {self.key_path} does not hold a key (32 bytes in URL-safe base64); put the right "
                    "file back, since without it no sealed secret can be opened.",
                ) from None
            self._digest_key = hmac.new(base64.urlsafe_b64decode(key), b"digest", hashlib.sha256).digest()
            self._fernet = fernet

    def seal(self, value: Any) -> bytes:
        """``value`` (JSON) encrypted and authenticated."""
        return self._cipher().encrypt(json.dumps(value, ensure_ascii=False).encode())

    def open(self, sealed: bytes) -> Any:
        """What :meth:`seal` was given. Raises VaultError."""
        try:
            return json.loads(self._cipher().decrypt(sealed))
        except InvalidToken:
            raise VaultError(f"a sealed value does not open with the key in {self.key_path}") from None

    def digest(self, data: bytes) -> str:
        """A keyed hash in hex: tells whether two values are equal, and nothing to one who lacks the key."""
        self._cipher()
        return hmac.new(self._digest_key, data, hashlib.sha256).hexdigest()

    def _cipher(self) -> Fernet:
        if self._fernet is None:
            self.load()
        assert self._fernet is not None
        return self._fernet


class _OpenToOthers(Exception):
    """The text is the file's mode."""


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise _OpenToOthers(f"{mode:04o}")
        return file.read().strip()


def _read_or_make(path: Path) -> bytes:
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Two processes may start together: the name appears with its content, and only once.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(Fernet.generate_key() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            pass
    finally:
        beside.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return _read(path)
