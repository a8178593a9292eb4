"""The files on the controller that settings name: the system key, the operator's token, certificates."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path
from typing import Any, Optional

from finding import FLEET, Finding

from runtime.protocol.credentials import BOM, fits_a_header
from runtime.server.settings import KEY_SHORTEST, key_fault

LIMIT = 4096
"""Bytes: what is larger is another file, named by mistake."""
MAKE_KEY = f"a random key of at least {KEY_SHORTEST} characters: head -c 32 /dev/urandom | base64"
MAKE_TOKEN = "heterofleet server token create --name ansible --role admin"  # noqa: S105 (a command, no token)


class FileFault(Exception):
    """A file that cannot be used: what was found and wanted, what to do about it."""

    def __init__(self, found: str, wanted: str, do: str) -> None:
        super().__init__(found)
        self.found, self.wanted, self.do = found, wanted, do


def read_secret(path: Path, variable: str) -> str:
    """One line out of a file that only its owner can read; FileFault never shows it."""
    try:
        with path.open("rb") as file:
            data, mode = file.read(LIMIT + 1), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise FileFault(f"{path}: {error.strerror}", "a file that can be read", f"set {variable} to its path") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise FileFault(f"{path} open to others (mode {stat.S_IMODE(mode):04o})", "mode 0600", f"chmod 600 {path}")
    alone = "write the secret alone into it, in one line"
    if len(data) > LIMIT:
        raise FileFault(f"{path} with more than {LIMIT} bytes", "one line", alone)
    if data.startswith(BOM):
        raise FileFault(f"{path} that begins with a byte order mark", "plain ASCII", "save it as plain text")
    if data.endswith(b"\r\n"):
        raise FileFault(f"{path} with Windows line ends", "Unix line ends", "save it with Unix line ends")
    text = data.removesuffix(b"\n").decode("ascii", "replace")
    if not text:
        raise FileFault(f"{path}, which is empty", "one line", alone)
    if not fits_a_header(text):
        raise FileFault(
            f"{path} with blanks, more than one line, or characters beyond ASCII", "one line of printable ASCII", alone
        )
    return text


def path_of(value: Any, variable: str, what: str) -> Path:
    """The file that a variable names. FileFault where it names none."""
    if not isinstance(value, str) or not value:
        raise FileFault(
            "nothing" if value in (None, "") else f"{type(value).__name__}", f"the path of {what}", f"set {variable}"
        )
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise FileFault(
            f"the relative path {value}", "an absolute path, or one that begins with ~", f"change {variable}"
        )
    return path


def key_findings(value: Any) -> list[Finding]:
    try:
        key = read_secret(path_of(value, "fleet_api_key_file", "a file with the system key"), "fleet_api_key_file")
    except FileFault as fault:
        return [Finding(FLEET, "key file", fault.found, fault.wanted, fault.do)]
    weak = key_fault(key)
    return (
        [
            Finding(
                FLEET, "key file", f"in {value} {weak}", MAKE_KEY, "change the key of the control plane, then this file"
            )
        ]
        if weak
        else []
    )


def token_findings(value: Any) -> list[Finding]:
    try:
        read_secret(path_of(value, "fleet_token_file", "a file with an operator's token"), "fleet_token_file")
    except FileFault as fault:
        return [Finding(FLEET, "token file", fault.found, fault.wanted, f"{fault.do}; {MAKE_TOKEN} makes one")]
    return []


def ca_findings(value: Any) -> list[Finding]:
    if value in (None, ""):
        return []
    try:
        path = path_of(value, "fleet_ca_file", "a file with CA certificates")
        ssl.create_default_context(cafile=str(path))
    except FileFault as fault:
        return [Finding(FLEET, "CA file", fault.found, fault.wanted, fault.do)]
    except OSError as error:
        found = "no certificate in PEM form" if isinstance(error, ssl.SSLError) else str(error.strerror)
        return [Finding(FLEET, "CA file", f"{path}: {found}", "CA certificates in PEM form", "correct fleet_ca_file")]
    return []


def secret_or_none(value: Any) -> Optional[str]:
    """The secret in the file that ``value`` names; None where a finding says what is wrong with it."""
    try:
        return read_secret(path_of(value, "", ""), "")
    except FileFault:
        return None
