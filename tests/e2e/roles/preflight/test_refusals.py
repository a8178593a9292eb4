"""One wrong key among three hosts; another control plane; settings that no host could go on with."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.e2e.roles.ansible import Fleet
from tests.e2e.roles.preflight.preflight import GONE, forget, play, rows, table, went_on, with_gone, write_private
from tests.integration.distribution.authority import Authority
from tests.integration.distribution.front import front
from tests.integration.distribution.site import changed, snapshot
from tests.lab import Node, places
from tests.lab.control_plane import ControlPlane

pytestmark = pytest.mark.timeout(900)

WRONG = "Wr0ng-key%of/one+host=that&is:strong"
LOGIN = "pr0xy-l0gin"


@dataclass(frozen=True)
class Three:
    """Two nodes and a host that does not answer; the second node has a key of its own, which is wrong."""

    fleet: Fleet
    plane: ControlPlane
    good: Node
    wrong: Node


@pytest.fixture
def three(fleet: Fleet, plane: ControlPlane) -> Iterator[Three]:
    good, wrong = with_gone(fleet)
    fleet.host_vars[wrong.name]["fleet_api_key_file"] = write_private(fleet.folder / "wrong-key", WRONG + "\n")
    fleet.host_vars[GONE]["agent_settings"] = {"proxy": f"http://user:{LOGIN}@192.0.2.1:3128"}
    forget(good, wrong)
    yield Three(fleet, plane, good, wrong)
    forget(good, wrong)


def traces(before: list[str], after: list[str]) -> list[str]:
    """What changed on a node, without who is logged in there and what greets them: that is the SSH server's."""
    return [line for line in changed(before, after) if line.split()[1] not in ("/run/utmp", "/run/motd.dynamic")]


def last_heard(plane: ControlPlane, node: Node) -> str | None:
    """The control plane of all rooms may know the node from another test."""
    status, body = plane.request("GET", f"/api/v1/nodes/{node.name}")
    assert status in (200, 404), body
    return str(body["last_seen_at"]) if status == 200 else None


def forms(secret: str) -> list[str]:
    return [secret, base64.b64encode(secret.encode()).decode(), quote(secret, safe="")]


@pytest.mark.case("FC-069")
def test_one_wrong_key_among_three_hosts(three: Three) -> None:
    """That host is refused with the reason before any change and the others deploy; with stop, no host is touched."""
    good, wrong = three.good, three.wrong
    before = {node.name: snapshot(node, times=True) for node in (good, wrong)}
    heard = last_heard(three.plane, wrong)

    stopped = three.fleet.play("deploy.yml", "--diff", check=False, extra={"fleet_refused": "stop"})
    assert stopped.rc == 2
    results = {host: said["result"] for host, said in stopped.outcomes.items()}
    assert results == {good.name: "skipped", wrong.name: "refused", GONE: "refused"}, stopped.outcomes
    assert stopped.outcomes[good.name]["reason"].startswith(f"refused: {GONE}, {wrong.name}; fleet_refused is stop")
    assert traces(before[good.name], snapshot(good, times=True)) == []

    skipped = three.fleet.play("deploy.yml", "-vvv", "--diff", check=False)
    assert skipped.rc == 2
    assert traces(before[wrong.name], snapshot(wrong, times=True)) == []
    outcome = skipped.outcomes[wrong.name]
    assert outcome["result"] == "refused"
    assert outcome["reason"].startswith(f"key: found {three.plane.url} refuses the key (401), wanted the system key")
    assert skipped.outcomes[GONE]["reason"].startswith("SSH: found ")
    assert skipped.outcomes[good.name]["result"] == "changed", skipped.outcomes
    assert three.plane.get(f"/api/v1/nodes/{good.name}")["state"] == "online"
    assert last_heard(three.plane, wrong) == heard
    assert "Preflight: 2 of 3 hosts refused." in table(skipped)
    for secret in (WRONG, LOGIN, three.plane.key, three.plane.token_file.read_text().strip()):
        for form in forms(secret):
            assert form not in skipped.output + stopped.output


def test_a_node_whose_network_meets_another_control_plane(three: Three) -> None:
    """The address that the controller reaches leads elsewhere from that node."""
    good, lost = three.good, three.wrong
    three.fleet.host_vars = {node.name: {"ansible_host": node.address} for node in (good, lost)}
    three.fleet.groups = {"nodes": [good.name, lost.name]}
    other = ControlPlane("elsewhere", listen=f"{places.HOST_ADDRESS}:{places.port(4)}", doorbell="")
    rule = [
        *("OUTPUT", "-p", "tcp", "-d", places.HOST_ADDRESS, "--dport", str(places.port())),
        *("-j", "DNAT", "--to-destination", f"{places.HOST_ADDRESS}:{places.port(4)}"),
    ]
    other.start()
    lost.run(["iptables", "-t", "nat", "-A", *rule])
    try:
        played = play(three.fleet)
        its, ours = (control_plane_id(plane) for plane in (other, three.plane))
    finally:
        lost.run(["iptables", "-t", "nat", "-D", *rule])
        other.remove()
    assert played.rc == 2 and went_on(good) and not went_on(lost), played.outcomes
    reason = played.outcomes[lost.name]["reason"]
    assert f"another one at {three.plane.url} ({its})" in reason and f"the controller's ({ours})" in reason


def test_over_tls_a_node_trusts_the_authority_that_the_controller_has(three: Three, tmp_path: Path) -> None:
    """The certificates need not be on the node; where none are named, trust is the system's own, and is missing."""
    good, other = three.good, three.wrong
    authority = Authority(tmp_path)
    three.fleet.host_vars = {
        good.name: {"ansible_host": good.address, "fleet_ca_file": str(authority.file)},
        other.name: {"ansible_host": other.address},
    }
    three.fleet.groups = {"nodes": [good.name, other.name]}
    with front(three.plane.url, tls=authority.context(places.HOST_ADDRESS)) as served:
        three.fleet.variables["fleet_server_url"] = served.url
        played = play(three.fleet)
    assert played.rc == 2 and went_on(good) and not went_on(other), played.output
    assert "its certificate was not accepted" in played.outcomes[other.name]["reason"]


def control_plane_id(plane: ControlPlane) -> str:
    with urllib.request.urlopen(f"{plane.url}/readyz", timeout=40) as answer:
        return str(answer.headers["X-Control-Plane-Id"])


def test_settings_that_are_wrong_for_all_end_the_run_before_any_connection(three: Three) -> None:
    three.fleet.variables["fleet_server_url"] = "http://user:secret-word@192.0.2.1:3333"
    three.fleet.variables["fleet_wafe"] = [1]
    played = play(three.fleet)
    assert played.rc == 2
    assert played.results("Ask the shell") == []
    assert set(played.failures.values()) == {
        "nothing is done because of server URL, variables; the findings say what to do"
    }
    found = rows(table(played))
    assert "a user name or password in the URL" in found["(all) server URL"]
    assert "fleet_wafe, which nothing reads" in found["(all) variables"]
    assert "the nearest is fleet_wave" in found["(all) variables"]
    assert "secret-word" not in played.output
