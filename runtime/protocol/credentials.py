"""What a system key or an operator token may look like, and where trust in a server's certificate comes from.

One rule for server, agent and command line: a key that one of them takes and another refuses is of no use.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Optional
from urllib.parse import unquote, urlsplit

BOM = b"\xef\xbb\xbf"
"""What some editors put before the first character of a file in UTF-8."""

SYSTEM_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL and their kin
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",
)


def fits_a_header(credential: str) -> bool:
    """Whether it travels in an HTTP header as it is: printable ASCII without blanks, and not empty."""
    return re.fullmatch(r"[!-~]+", credential) is not None


def password_in(url: Optional[str]) -> Optional[str]:
    """The password in a proxy's URL, as its owner wrote it down; None where there is none."""
    try:
        password = urlsplit(url or "").password
    except ValueError:
        return None
    return unquote(password) if password else None


def ca_bundle(ca_file: Optional[str]) -> Optional[str]:
    """Where trust comes from: the setting, else the system's own list; None: the HTTP library's list.

    The library brings its own list and would not see a CA that was added to the system.
    """
    if ca_file is not None:
        return ca_file
    for path in (ssl.get_default_verify_paths().cafile, *SYSTEM_CA_FILES):
        if path and Path(path).is_file():
            return path
    return None
