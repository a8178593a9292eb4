"""Which agent, interpreter, kernel and control plane meet here, and whether they speak one protocol."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Optional

from runtime.agent.doctor.findings import Finding, failure, finding, ok, unknown, warning
from runtime.agent.doctor.server import SILENT, ServerFacts
from runtime.protocol import PROTOCOL, PROTOCOL_MIN
from runtime.protocol.build import DEV, Build, this_build
from runtime.protocol.heartbeat import Preflight


@dataclass(frozen=True)
class VersionFacts:
    """``server`` None: it did not tell."""

    build: Build
    python: str
    kernel: str
    server: Optional[Preflight]
    protocol: int = PROTOCOL
    protocol_min: int = PROTOCOL_MIN


def look_at_versions(server: Optional[ServerFacts]) -> VersionFacts:
    preflight = None if server is None else server.preflight
    return VersionFacts(this_build(), platform.python_version(), platform.release(), preflight)


def judge_versions(facts: VersionFacts) -> Finding:
    here = f"agent {facts.build}, Python {facts.python}, kernel {facts.kernel}"
    points = []
    if facts.build == DEV or facts.build.dirty:
        kind = "a plain checkout" if facts.build == DEV else "a build of changed sources"
        points.append(warning(f"this agent is {kind}", "a release", "install a release build"))
    if facts.server is None:
        points.append(unknown(f"{here}; which protocol the control plane speaks is not known: {SILENT}", "see server"))
        return finding("versions", points)
    theirs = f"control plane {facts.server.server_version}"
    ours, its = (facts.protocol_min, facts.protocol), (facts.server.protocol_min, facts.server.protocol)
    if max(ours[0], its[0]) > min(ours[1], its[1]):
        older = "the agent" if ours[1] < its[0] else "the control plane"
        words = f"{here} speaks protocol {_span(*ours)}, {theirs} speaks {_span(*its)}"
        points.append(failure(words, "one protocol in common", f"upgrade {older}"))
    else:
        points.append(ok(f"{here}; {theirs}; protocol {min(ours[1], its[1])}"))
    return finding("versions", points)


def _span(low: int, high: int) -> str:
    return str(high) if low == high else f"{low} to {high}"
