"""InfiniBand ports on the server: shown as the node tells them, kept, and never made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.server_core.plane import FULL, Agent, Plane, running, wait_until

PORT = {
    "name": "ibx_0",
    "port": 1,
    "state": "active",
    "rate_gbps": 400.0,
    "link_layer": "InfiniBand",
    "gid_prefix": "fe80:0000:0000:0000",
    "numa_node": 1,
    "fabric": "ib-a",
}
SILENT = {"name": "ibx_1", "fabric": "ib-a"}


def shown(plane: Plane) -> Any:
    return plane.operator("GET", "/api/v1/nodes/gpu-a").body["hcas"]


def test_ports_are_shown_unchanged_none_and_unknown(plane: Plane, agent: Agent) -> None:
    agent.beat(**FULL)
    assert shown(plane) is None, "never looked at"
    seen = {**FULL["digests"], "hcas": "p1"}
    agent.beat(**{**FULL, "digests": seen, "hcas": [PORT, SILENT]})
    whole = [PORT, {**dict.fromkeys(PORT), **SILENT}]
    assert shown(plane) == whole
    assert agent.beat(digests=seen).body["send_full"] == []
    assert shown(plane) == whole, "named by its digest: unchanged"
    assert agent.beat(digests={**seen, "hcas": "p2"}).body["send_full"] == ["hcas"]
    assert shown(plane) == whole, "kept until it is sent"
    agent.beat(digests={**seen, "hcas": "p3"}, hcas=[])
    assert shown(plane) == [], "looked at, and none"
    agent.beat(digests=FULL["digests"])
    assert shown(plane) is None, "not known any more"


def test_a_restarted_server_knows_them(tmp_path: Path) -> None:
    with running(tmp_path) as plane:
        Agent(plane).beat(**{**FULL, "digests": {**FULL["digests"], "hcas": "p1"}, "hcas": [PORT]})
        wait_until(lambda: not plane.parts.presence.backlog, "the beat is written")
    with running(tmp_path) as plane:
        assert shown(plane) == [PORT]
