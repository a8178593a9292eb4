"""The control plane as this node reaches it: name, connection, certificate, answer, key, clock."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Callable, Optional, cast
from urllib.parse import urlsplit

from runtime.agent.deadline import Late, within
from runtime.agent.doctor.findings import Finding, Point, State, failure, finding, ok, unknown, warning
from runtime.agent.link.client import ServerClient
from runtime.agent.link.errors import Refused, Unavailable
from runtime.agent.link.identity import Identity
from runtime.agent.settings import AgentSettings
from runtime.protocol.address import AddressError, ServerAddress, parse_server_url
from runtime.protocol.causes import root_cause
from runtime.protocol.credentials import ca_bundle
from runtime.protocol.heartbeat import Preflight
from runtime.protocol.times import from_wire

RESOLVE_S = 6.0
CONNECT_S = 3.0
TLS_S = 4.0
ANSWER_S = 8.0
ADDRESSES = 6
"""So many addresses of a name are tried, side by side."""

PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
SKEW_S = 30.0
EXPIRES_DAYS = 14.0
SILENT = "the control plane did not tell"


@dataclass(frozen=True)
class ServerFacts:
    """How far the way to the control plane went. ``failed``: ``resolve``, ``connect``, ``tls``, ``answer``, ``busy``
    or ``key``, with the words of it in ``error``; "" when all went well. ``asked_at`` and ``answered_at`` are readings
    of this machine's wall clock, ``certificate_days`` how long the server's certificate is still valid.
    ``other_proxy``: a variable names a proxy that the agent does not use."""

    target: str
    host: str
    port: int
    proxy: Optional[str] = None
    addresses: tuple[str, ...] = ()
    dead_addresses: dict[str, str] = field(default_factory=dict)
    certificate_days: Optional[float] = None
    failed: str = ""
    error: str = ""
    preflight: Optional[Preflight] = None
    asked_at: float = 0.0
    answered_at: float = 0.0
    no_key: bool = False
    other_proxy: str = ""


def look_at_server(settings: AgentSettings, say: Callable[[str], None] = lambda _: None) -> Optional[ServerFacts]:
    """The whole way, step by step, as the agent would go it; None without a usable server_url."""
    try:
        address = parse_server_url(settings.server_url or "", allow_plain_http=settings.allow_plain_http)
    except AddressError:
        return None
    host, port, proxy = address.host, address.port, None
    if settings.proxy:
        parts = urlsplit(settings.proxy)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        proxy = f"{host}:{port}"
    variable = "" if proxy else next((name for name in PROXY_VARIABLES if os.environ.get(name)), "")
    facts = ServerFacts(address.base, host, port, proxy, other_proxy=variable)
    for step, words in (
        (_resolve, f"asking name servers for {host}"),
        (_connect, f"connecting to {host} port {port}"),
        (lambda known: _shake_hands(known, address, settings), f"TLS with {host}"),
        (lambda known: _ask(known, settings), f"waiting for the answer of {address.base}"),
    ):
        say(words)
        facts = step(facts)
        if facts.failed:
            break
    say("")
    return facts


def _resolve(facts: ServerFacts) -> ServerFacts:
    def look() -> tuple[str, ...]:
        rows = socket.getaddrinfo(facts.host, facts.port, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(row[4][0]) for row in rows))

    try:
        return replace(facts, addresses=within(RESOLVE_S, look))
    except Late:
        return replace(facts, failed="resolve", error=f"no name server answered in {RESOLVE_S:g} s")
    except (OSError, UnicodeError) as error:
        return replace(facts, failed="resolve", error=root_cause(error))


def _connect(facts: ServerFacts) -> ServerFacts:
    """All addresses at once: one that is dead costs the agent time at every connection."""
    tried = facts.addresses[:ADDRESSES]
    with ThreadPoolExecutor(max(1, len(tried))) as pool:
        errors = dict(zip(tried, pool.map(lambda address: _connect_one(address, facts.port), tried)))
    dead = {address: error for address, error in errors.items() if error}
    facts = replace(facts, dead_addresses=dead)
    if len(dead) == len(tried):
        words = "; ".join(f"{address}: {error}" for address, error in dead.items())
        return replace(facts, failed="connect", error=words)
    return facts


def _connect_one(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), timeout=CONNECT_S).close()
    except OSError as error:
        return f"no connection within {CONNECT_S:g} s" if isinstance(error, socket.timeout) else root_cause(error)
    return ""


def _shake_hands(facts: ServerFacts, address: ServerAddress, settings: AgentSettings) -> ServerFacts:
    if address.scheme != "https" or facts.proxy is not None:
        return facts
    try:
        context = ssl.create_default_context(cafile=ca_bundle(settings.ca_file))
        with (
            socket.create_connection((address.host, address.port), timeout=TLS_S) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as secured,
        ):
            certificate = secured.getpeercert() or {}
    except (OSError, ValueError) as error:
        trust = ca_bundle(settings.ca_file) or "the library's own list"
        return replace(facts, failed="tls", error=f"{root_cause(error)} (trust comes from {trust})")
    ends = certificate.get("notAfter")
    days = (ssl.cert_time_to_seconds(ends) - time.time()) / 86400 if isinstance(ends, str) else None
    return replace(facts, certificate_days=days)


def _ask(facts: ServerFacts, settings: AgentSettings) -> ServerFacts:
    """The preflight by the agent's own client: its rules about redirects, proxies and trust are the ones that count."""
    if not settings.api_key:
        return replace(facts, no_key=True)
    # The preflight sends the key alone, so there may be no identity yet.
    client = ServerClient(settings, cast(Identity, None), connect_s=CONNECT_S, read_s=ANSWER_S)
    asked = time.time()
    try:
        answer = client.preflight()
        return replace(facts, preflight=answer, asked_at=asked, answered_at=time.time())
    except Refused as error:
        failed = "key" if error.problem.status == 401 else "answer"
        return replace(facts, failed=failed, error=str(error))
    except Unavailable as error:
        busy = error.status == 503 and error.problem is not None
        return replace(facts, failed="busy" if busy else "answer", error=error.why)
    finally:
        client.close()


# Verdicts.

_ADVICE = {
    "resolve": "correct the host in server_url, or look at /etc/resolv.conf and the network",
    "connect": "check that the control plane runs and that firewalls let this node out to that port",
    "tls": "set ca_file to the CA that signed the certificate; if the words are about dates, look at the clocks",
    "answer": "check server_url, and that nothing else answers there",
}


def judge_server(facts: Optional[ServerFacts]) -> Finding:
    if facts is None:
        words = "not known where the control plane is (server_url)"
        return finding("server", [unknown(words, "see settings")])
    way = facts.target + (f" through the proxy {facts.proxy}" if facts.proxy else "")
    if facts.failed in _ADVICE:
        what = {"resolve": f"the name {facts.host} has no address: ", "connect": f"port {facts.port}: "}
        text = facts.error if facts.target in facts.error else f"{way}: {what.get(facts.failed, '')}{facts.error}"
        advice = _ADVICE[facts.failed]
        if facts.other_proxy and facts.failed in ("resolve", "connect"):
            advice += f"; {facts.other_proxy} names a proxy, which the agent uses only when the setting proxy says so"
        return finding("server", [failure(text, "a control plane that answers", advice)])
    points = [
        warning(
            f"{address}, an address of {facts.host}, does not answer ({error})",
            "every address of the name reachable",
            "each connection may lose time there: correct the name's records or the route",
        )
        for address, error in facts.dead_addresses.items()
    ]
    if facts.certificate_days is not None and facts.certificate_days < EXPIRES_DAYS:
        points.append(
            warning(
                f"its certificate is valid for {facts.certificate_days:.0f} more days",
                f"at least {EXPIRES_DAYS:.0f}",
                "have it renewed on the control plane",
            )
        )
    if facts.failed == "busy":
        points.append(warning(facts.error, "a control plane that is ready", "wait a moment and ask again"))
    elif facts.no_key:
        points.append(unknown(f"{way} takes connections; without a key it was not asked", "see key"))
    else:
        points.append(ok(f"{way} answers"))
    return finding("server", points)


def judge_key(facts: Optional[ServerFacts], local: Sequence[Point]) -> Finding:
    """``local`` is what this machine says of the key by itself."""
    points = list(local)
    if facts is not None and facts.failed == "key":
        points.append(
            failure(
                f"{facts.target} refuses the key: {facts.error}",
                "the system key of that control plane",
                "put the right key into the key file and restart the agent, or run the install script again with it",
            )
        )
    elif facts is not None and facts.preflight is not None:
        points.append(ok("the control plane takes the key"))
    elif not points or all(point.state is State.WARNING for point in points):
        points.append(unknown("not known whether the key is right: " + SILENT, "see server"))
    return finding("key", points)


def skew_s(facts: ServerFacts) -> Optional[tuple[float, float]]:
    """(how far this clock is ahead of the server's, how exactly that is known), in seconds."""
    if facts.preflight is None:
        return None
    try:
        theirs = from_wire(facts.preflight.time).timestamp()
    except ValueError:
        return None
    middle = (facts.asked_at + facts.answered_at) / 2
    return middle - theirs, abs(facts.answered_at - facts.asked_at) / 2


def judge_clock(facts: Optional[ServerFacts]) -> Finding:
    skew = None if facts is None else skew_s(facts)
    if skew is None:
        return finding(
            "clock", [unknown("the time of the control plane is not known: it was not told", "see server and key")]
        )
    ahead, doubt = skew
    words = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the control plane's clock"
    if abs(ahead) < 1:
        words = "within a second of the control plane's clock"
    if abs(ahead) - doubt > SKEW_S:
        advice = "let both machines follow a time server (timedatectl set-ntp true)"
        return finding("clock", [warning(words, f"at most {SKEW_S:.0f} s apart", advice)])
    if abs(ahead) + doubt > SKEW_S:
        return finding("clock", [unknown(f"{words}, give or take {doubt:.0f} s: the answer came slowly", "ask again")])
    return finding("clock", [ok(words)])
