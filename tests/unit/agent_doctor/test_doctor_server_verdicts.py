"""From facts to verdicts: the way to the control plane, its key, clock and protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.agent.doctor.findings import failure, warning
from runtime.agent.doctor.server import ServerFacts, judge_clock, judge_key, judge_server, skew_s
from runtime.agent.doctor.versions import VersionFacts, judge_versions
from runtime.protocol.build import DEV, Build
from runtime.protocol.heartbeat import Preflight

ANSWER = Preflight("cp", "1.2.0", 1, 1, "2026-11-29T12:00:00.000Z")
NOON = 1795953600.0
GOOD = ServerFacts(
    "https://cp.example:3333", "cp.example", 3333, addresses=("10.0.0.1",), preflight=ANSWER, asked_at=NOON,
    answered_at=NOON + 0.2,
)  # fmt: skip


def broken(step: str, error: str, **more: object) -> ServerFacts:
    return replace(GOOD, preflight=None, failed=step, error=error, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        (GOOD, "ok", ["https://cp.example:3333 answers"]),
        (replace(GOOD, proxy="proxy:3128"), "ok", ["through the proxy proxy:3128"]),
        (None, "unknown", ["server_url"]),
        (broken("resolve", "Name or service not known"), "failure", ["cp.example has no address", "resolv.conf"]),
        (broken("resolve", "no name server answered in 6 s"), "failure", ["no name server answered"]),
        (broken("connect", "10.0.0.1: Connection refused"), "failure", ["10.0.0.1: Connection refused", "firewalls"]),
        (broken("connect", "timeout", other_proxy="https_proxy"), "failure", ["https_proxy", "setting proxy"]),
        (broken("tls", "certificate has expired"), "failure", ["certificate has expired", "ca_file", "clocks"]),
        (broken("tls", "self-signed", other_proxy="https_proxy"), "failure", ["ca_file"]),
        (broken("answer", "https://cp.example:3333 answered 302 and points to x"), "failure", ["points to x"]),
        (broken("busy", "https://cp.example:3333 answered 503 (starting: ..)"), "warning", ["starting", "ask again"]),
        (broken("key", "bad_api_key (401)"), "ok", ["answers"]),
        (replace(GOOD, preflight=None, no_key=True), "unknown", ["takes connections", "see key"]),
        (replace(GOOD, dead_addresses={"fd00::1": "no connection within 3 s"}), "warning", ["fd00::1", "records"]),
        (replace(GOOD, certificate_days=13.0), "warning", ["13 more days"]),
        (replace(GOOD, certificate_days=15.0), "ok", []),
    ],
)
def test_server(facts: ServerFacts | None, state: str, words: list[str]) -> None:
    found = judge_server(facts)
    assert found.state.value == state, found.text
    assert [word for word in words if word not in f"{found.text} {found.advice}"] == [], found.text
    assert found.advice or state == "ok"


OPEN = warning("/k is open to others (mode 0644)", "0600", "chmod 0600 /k")
EMPTY = failure("an empty key", "the system key", "put it there")


@pytest.mark.parametrize(
    ("facts", "local", "state", "words"),
    [
        (GOOD, [], "ok", ["takes the key"]),
        (GOOD, [OPEN], "warning", ["open to others", "takes the key"]),
        (broken("key", "bad_api_key (401): refused"), [], "failure", ["refuses the key", "401", "right key"]),
        (broken("connect", "refused"), [], "unknown", ["not known whether the key is right"]),
        (broken("connect", "refused"), [OPEN], "warning", ["open to others", "not known whether"]),
        (None, [], "unknown", ["not known whether"]),
        (None, [EMPTY], "failure", ["an empty key"]),
    ],
)
def test_key(facts: ServerFacts | None, local: list, state: str, words: list[str]) -> None:
    found = judge_key(facts, local)
    assert found.state.value == state, found.text
    assert [word for word in words if word not in f"{found.text} {found.advice}"] == [], found.text


@pytest.mark.parametrize(
    ("ahead_s", "took_s", "state", "words"),
    [
        (0.0, 0.2, "ok", ["within a second"]),
        (29.0, 0.2, "ok", ["29 s ahead of"]),
        (-29.0, 0.2, "ok", ["29 s behind"]),
        (31.0, 0.2, "warning", ["31 s ahead of", "at most 30 s", "time server"]),
        (-7200.0, 0.2, "warning", ["7200 s behind"]),
        (29.5, 4.0, "unknown", ["give or take 2 s"]),
        (31.0, 4.0, "unknown", ["give or take 2 s"]),
        (40.0, 4.0, "warning", ["40 s ahead of"]),
    ],
)
def test_clock(ahead_s: float, took_s: float, state: str, words: list[str]) -> None:
    middle = NOON + ahead_s
    facts = replace(GOOD, asked_at=middle - took_s / 2, answered_at=middle + took_s / 2)
    found = judge_clock(facts)
    assert found.state.value == state, found.text
    assert [word for word in words if word not in f"{found.text} {found.advice}"] == [], found.text


def test_a_clock_that_nobody_told_of_is_unknown() -> None:
    for facts in (None, broken("key", "401"), replace(GOOD, preflight=replace(ANSWER, time="yesterday"))):
        assert judge_clock(facts).state.value == "unknown"
        assert facts is None or skew_s(facts) is None


RELEASE = Build("1.2.0", "abc123", "2026-11-29T00:00:00Z", False)


@pytest.mark.parametrize(
    ("build", "server", "state", "words"),
    [
        (RELEASE, ANSWER, "ok", ["agent 1.2.0/abc123", "control plane 1.2.0", "protocol 1"]),
        (RELEASE, replace(ANSWER, protocol=3, protocol_min=1), "ok", ["protocol 1"]),
        (RELEASE, replace(ANSWER, protocol=3, protocol_min=2), "failure", ["upgrade the agent", "speaks 2 to 3"]),
        (RELEASE, replace(ANSWER, protocol=0, protocol_min=0), "failure", ["upgrade the control plane"]),
        (RELEASE, None, "unknown", ["not known"]),
        (DEV, ANSWER, "warning", ["plain checkout"]),
        (replace(RELEASE, dirty=True), ANSWER, "warning", ["changed sources"]),
    ],
)
def test_versions(build: Build, server: Preflight | None, state: str, words: list[str]) -> None:
    found = judge_versions(VersionFacts(build, "3.9.2", "6.1.0", server, protocol=1, protocol_min=1))
    assert found.state.value == state, found.text
    assert "Python 3.9.2" in found.text and "kernel 6.1.0" in found.text
    assert [word for word in words if word not in f"{found.text} {found.advice}"] == [], found.text
