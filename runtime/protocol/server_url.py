"""The control plane's address as its clients may use it: agent and command line share one rule.

A credential goes only to the host of this address, and over plain ``http://`` only to loopback or a private
address, unless the operator has said otherwise.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Callable, Optional
from urllib.parse import urlsplit

Resolve = Callable[[str], Iterable[str]]
"""Host name -> its addresses; OSError when it has none."""


def resolve(host: str) -> list[str]:
    """The addresses of ``host`` by the machine's own resolver."""
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})


def check_server_url(url: str, *, allow_plain_http: bool = False, resolver: Resolve = resolve) -> str:
    """``url`` without a trailing slash; ValueError with what was found, what is wanted and what to do.

    A host that cannot be resolved now is let through: connecting will say so, and nothing is sent before.
    """
    example = "wanted http(s)://HOST[:PORT], for example https://fleet.example.com:3333"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"server_url {url!r}: {error}; {example}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(f"server_url {url!r} is not an http or https address; {example}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"server_url holds more than scheme, host, port and path; {example}")
    if parts.scheme == "http" and not allow_plain_http:
        public = _first_public(host, resolver)
        if public is not None:
            raise ValueError(
                f"server_url {url!r} would send the credential unencrypted to {public}, which is neither loopback "
                "nor private; use https://, or set allow_plain_http: true if the way there is protected otherwise"
            )
    return url.rstrip("/")


def _first_public(host: str, resolver: Resolve) -> Optional[str]:
    try:
        addresses: Iterable[str] = [str(ipaddress.ip_address(host))]
    except ValueError:
        try:
            addresses = resolver(host)
        except OSError:
            return None
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        if not (address.is_private or address.is_loopback or address.is_link_local):
            return text
    return None
