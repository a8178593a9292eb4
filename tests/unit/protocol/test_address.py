"""Where a credential may be sent: addresses of the control plane, as a table."""

from __future__ import annotations

import pytest

from runtime.protocol.address import AddressError, is_near, parse_server_url


@pytest.mark.parametrize(
    ("text", "base", "host", "port"),
    [
        ("http://127.0.0.1:3333", "http://127.0.0.1:3333", "127.0.0.1", 3333),
        ("http://localhost:3333/", "http://localhost:3333", "localhost", 3333),
        ("http://10.0.0.1", "http://10.0.0.1", "10.0.0.1", 80),
        ("http://192.168.1.5:8080/fleet/", "http://192.168.1.5:8080/fleet", "192.168.1.5", 8080),
        ("http://198.18.0.1:3333", "http://198.18.0.1:3333", "198.18.0.1", 3333),
        ("http://[::1]:3333", "http://[::1]:3333", "::1", 3333),
        ("http://[fd00::5]", "http://[fd00::5]", "fd00::5", 80),
        ("https://fleet.example.com", "https://fleet.example.com", "fleet.example.com", 443),
        ("https://8.8.8.8:3333", "https://8.8.8.8:3333", "8.8.8.8", 3333),
    ],
)
def test_what_may_be_used(text: str, base: str, host: str, port: int) -> None:
    address = parse_server_url(text)
    assert (address.base, address.host, address.port) == (base, host, port)


@pytest.mark.parametrize(
    "text", ["http://8.8.8.8:3333", "http://fleet.example.com:3333", "http://[2001:4860::8888]", "http://0.0.0.0:3333"]
)
def test_plain_http_across_a_network_that_is_not_ours_must_be_allowed(text: str) -> None:
    with pytest.raises(AddressError, match="neither loopback nor a private address"):
        parse_server_url(text)
    assert parse_server_url(text, allow_plain_http=True).base == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fleet:3333",
        "ftp://10.0.0.1",
        "http://",
        "http://:3333",
        "http://10.0.0.1:port",
        "http://10.0.0.1:70000",
        "http://user:secret@10.0.0.1",
        "http://10.0.0.1/?key=x",
        "http://10.0.0.1/#x",
        "http://10.0.0.1 /",
        "http://::1:3333",
        "http://[nonsense]:3333",
        "http://büro:3333",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_server_url(text, allow_plain_http=True)
    assert caught.value.wanted
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("LOCALHOST", True),
        ("169.254.1.1", True),
        ("::ffff:10.0.0.1", True),
        ("::ffff:8.8.8.8", False),
        ("::", False),
        ("fe80::1%eth0", True),
        ("localhost.example.com", False),
        ("10.0.0.1.example.com", False),
    ],
)
def test_what_is_near(host: str, near: bool) -> None:
    assert is_near(host) is near
