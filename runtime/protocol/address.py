"""Where the control plane is: what ``server_url`` may look like, and when plain HTTP is allowed.

One rule for agent and command line: both send a credential there.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Optional, Union
from urllib.parse import urlsplit


class AddressError(ValueError):
    """The URL cannot be used: ``found`` and ``wanted`` say why."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"found {found}, wanted {wanted}")
        self.found = found
        self.wanted = wanted


@dataclass(frozen=True)
class ServerAddress:
    """``base`` is scheme, host, port and path without a trailing slash; ``host`` is without brackets."""

    base: str
    scheme: str
    host: str
    port: int


def _ip(host: str) -> Optional[Union[ipaddress.IPv4Address, ipaddress.IPv6Address]]:
    try:
        return ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return None


def is_near(host: str) -> bool:
    """Whether ``host`` is loopback or a private address. A name other than ``localhost`` is not an address:
    what it stands for can change, so it does not count."""
    if host.lower() == "localhost":
        return True
    address = _ip(host)
    if address is None:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    near = address.is_private or address.is_loopback or address.is_link_local
    return near and not address.is_unspecified


def _with_brackets(text: str) -> str:
    """The bracketed form that an address without brackets probably means, for the message only."""
    host = text.split("://", 1)[-1].split("/", 1)[0]
    scheme = text.split("://", 1)[0] if "://" in text else "http"
    head, _, port = host.rpartition(":")
    if port.isdigit() and len(port) >= 4 and _ip(head) is not None:
        return f"{scheme}://[{head}]:{port} (or {scheme}://[{host}] if {port} is part of the address)"
    return f"{scheme}://[{host}]:3333"


def parse_server_url(text: str, *, allow_plain_http: bool = False) -> ServerAddress:
    """Check ``server_url``; AddressError when it is not one or when it would send the key in the open.

    Nothing is guessed: an IPv6 address stands in brackets, the scheme is written out.
    """
    rest = text.split("://", 1)[-1]
    authority = rest.split("/", 1)[0]
    if "@" in authority:  # before everything that would show the text
        raise AddressError("a user name or password in the URL", "a URL without them; the key has its own setting")
    if authority.count(":") > 1 and "[" not in authority:
        raise AddressError(repr(text), f"brackets around an IPv6 address: {_with_brackets(text)}")
    if "://" not in text:
        raise AddressError(repr(text), f"a URL with its scheme, such as http://{authority or 'HOST:3333'}")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AddressError(f"{text!r} ({error})", "a URL such as http://HOST:3333 or http://[ADDRESS]:3333") from None
    if parts.scheme not in ("http", "https"):
        raise AddressError(f"the scheme {parts.scheme!r}", "http or https")
    if parts.query or parts.fragment:
        raise AddressError(repr(text), "a URL without '?' and '#'")
    if not host or any(c.isspace() for c in text):
        raise AddressError(repr(text), "a URL with a host, such as http://HOST:3333")
    if ":" in host and _ip(host) is None:
        raise AddressError(repr(text), "an IPv6 address in the brackets")
    if not host.isascii():
        raise AddressError(repr(text), "a host name in ASCII (an international name in its xn-- form)")
    if parts.scheme == "http" and not allow_plain_http and not is_near(host):
        raise AddressError(
            f"plain http:// to {host}, which is neither loopback nor a private address",
            "https://, or allow_plain_http: true if the key may cross that network in the open",
        )
    shown = f"[{host}]" if ":" in host else host
    base = f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "") + parts.path.rstrip("/")
    return ServerAddress(base, parts.scheme, host, port or (443 if parts.scheme == "https" else 80))
