"""Whom the server believes when it says for whom it asks."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.server.proxies import PEER, Proxies

FORWARDED = {
    "HTTP_X_FORWARDED_FOR": "6.6.6.6, 198.51.100.7",
    "HTTP_X_FORWARDED_PROTO": "https",
    "HTTP_X_FORWARDED_HOST": "gpu.example",
}


@pytest.mark.parametrize(
    ("trusted", "peer", "client", "scheme", "host"),
    [
        ([], "10.0.0.1", "10.0.0.1", "http", "own:3333"),
        (["10.0.0.2"], "10.0.0.1", "10.0.0.1", "http", "own:3333"),
        (["10.0.0.1"], "10.0.0.1", "198.51.100.7", "https", "gpu.example"),
        (["192.168.0.0/16", "10.0.0.0/8"], "10.9.9.9", "198.51.100.7", "https", "gpu.example"),
        (["fd00::/8"], "fd00::1", "198.51.100.7", "https", "gpu.example"),
        (["10.0.0.0/8"], "not-an-address", "not-an-address", "http", "own:3333"),
    ],
)
def test_forwarded(trusted: list[str], peer: str, client: str, scheme: str, host: str) -> None:
    seen: dict[str, Any] = {}

    def application(environ: dict[str, Any], _start: Any) -> list[bytes]:
        seen.update(environ)
        return []

    environ = {"REMOTE_ADDR": peer, "HTTP_HOST": "own:3333", "wsgi.url_scheme": "http", **FORWARDED}
    Proxies(trusted).wrap(application)(environ, lambda *_: lambda _data: None)
    assert (seen["REMOTE_ADDR"], seen["wsgi.url_scheme"], seen["HTTP_HOST"]) == (client, scheme, host)
    assert seen.get(PEER, peer) == peer
