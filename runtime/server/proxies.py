"""Proxies in front of us: whom we believe when it says for whom it asks."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PEER = "heterofleet.peer"
"""Where the address of the connection's other end is kept once REMOTE_ADDR is the client's."""


class Proxies:
    """The addresses and networks of ``trusted_proxies``."""

    def __init__(self, texts: list[str]) -> None:
        self._networks = [ipaddress.ip_network(text, strict=False) for text in texts]

    def trusts(self, address: str | None) -> bool:
        """Whether a proxy of ours speaks from ``address``."""
        if not self._networks or not address:
            return False
        try:
            own = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(own in network for network in self._networks)

    def wrap(self, application: WSGIApplication) -> WSGIApplication:
        """``application`` that sees the client, where a proxy of ours names it."""

        def wrapped(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            peer = environ.get("REMOTE_ADDR")
            environ[PEER] = peer
            if self.trusts(peer):
                _believe(environ)
            return application(environ, start_response)

        return wrapped if self._networks else application


def _believe(environ: WSGIEnvironment) -> None:
    # The last entry is the one that our proxy itself has written; those before it are anybody's words.
    for header, key in (
        ("HTTP_X_FORWARDED_FOR", "REMOTE_ADDR"),
        ("HTTP_X_FORWARDED_PROTO", "wsgi.url_scheme"),
        ("HTTP_X_FORWARDED_HOST", "HTTP_HOST"),
    ):
        last = environ.get(header, "").rpartition(",")[2].strip()
        if last:
            environ[key] = last
