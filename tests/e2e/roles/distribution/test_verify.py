"""`verify.yml` finds what was planted in each of the three places and on a node, names it, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.protocol.manifest import ARCHITECTURES, read_manifest
from tests.e2e.roles.ansible import Played
from tests.e2e.roles.bare import make_bare
from tests.e2e.roles.builds import Builds
from tests.e2e.roles.distribution.three_places import Places, lines, shown
from tests.integration.distribution.mirrors import flip
from tests.integration.distribution.site import snapshot
from tests.lab import Lab, Node

GONE = "hf-gone"
"""A host of the inventory that does not answer: nothing has this address."""
BLIND = "hf-blind"
"""One that answers, and on which nobody can look: it has no such Python."""
PROGRAM = "/opt/heterofleet/current/heterofleet-agent"


@pytest.fixture(scope="module")
def nodes(lab: Lab, places: Places, builds: Builds) -> Iterator[list[Node]]:
    """Two nodes whose agents are of the builds that all places have."""
    made = lab.nodes[:2]
    make_bare(made)
    places.hand_out(builds.first)
    for node in made:
        node.put("/root/key", places.plane.key_file.read_bytes(), mode=0o600)
        node.run(["curl", "-fsSLo", "/root/install.sh", f"{places.plane.url}/install-agent.sh"])
        node.run(["sh", "/root/install.sh", "--key-file", "/root/key", "--yes"], timeout=150)
    yield made
    make_bare(made)


def verify(places: Places, nodes: list[Node], **variables: object) -> Played:
    """``gone``: with two hosts in the inventory that cannot be looked at."""
    gone = variables.pop("gone", False)
    fleet = places.fleet(nodes, staged=False, **variables)
    if gone:
        fleet.nodes = []
        fleet.host_vars = {node.name: {"ansible_host": node.address} for node in nodes}
        fleet.host_vars[GONE] = {"ansible_host": "198.18.0.250"}
        fleet.host_vars[BLIND] = {"ansible_host": nodes[0].address, "ansible_python_interpreter": "/no/such/python"}
        fleet.groups = {"nodes": list(fleet.host_vars)}
    return fleet.play("verify.yml", check=False)


def test_all_is_equal_and_nothing_is_touched(places: Places, nodes: list[Node]) -> None:
    before = [snapshot(node, times=True) for node in nodes]
    played = verify(places, nodes)
    assert (played.rc, played.changed) == (0, {}), played.output
    text = shown(played)
    manifest = read_manifest(places.dist)
    assert text.startswith(f"All is {manifest.version}/{manifest.commit}.")
    assert lines(text, nodes[0].name, nodes[1].name, ": ok")
    after = [snapshot(node, times=True) for node in nodes]
    # The agents go on meanwhile, and Ansible has a folder of its own.
    own = ("/var/lib/heterofleet/", "/root/.ansible", "/run/", "/tmp", "systemd ")
    for one, other in zip(before, after, strict=True):
        assert [line for line in set(one) ^ set(other) if not line.startswith(own)] == []


def test_a_byte_in_two_places_and_on_a_node_is_named(places: Places, nodes: list[Node], builds: Builds) -> None:
    """And hosts that cannot be looked at; both architectures in each place."""
    manifest = read_manifest(places.dist)
    release = manifest.release("amd64")
    for entry in manifest.builds.values():
        flip(places.builds / entry.file)
        flip(places.mirrored / entry.file)
    # Beside it and renamed: the agent that runs keeps its file.
    nodes[1].sh(
        f"cp -p {PROGRAM} {PROGRAM}.new; printf X | dd of={PROGRAM}.new bs=1 seek=9000 conv=notrunc status=none"
    )
    nodes[1].sh(f"mv {PROGRAM} {PROGRAM}.good; mv {PROGRAM}.new {PROGRAM}")
    try:
        played = verify(places, nodes, gone=True)
    finally:
        nodes[1].sh(f"mv {PROGRAM}.good {PROGRAM}")
        places.hand_out(builds.first)
    assert played.rc != 0
    text = shown(played)
    for place in (f"{places.plane.url}/static/agent", f"{places.mirror}/static/agent"):
        assert [len(lines(text, place, f" {arch} ", "WRONG")) for arch in ARCHITECTURES] == [1, 1], text
    assert len(lines(text, "WRONG")) == 4
    assert len(lines(text, f"{nodes[1].name}: the file of {release} is another one")) == 1
    assert len(lines(text, f"{GONE}: does not answer")) == 1
    assert len(lines(text, f"{BLIND}: ")) == 1
    assert len(lines(text, f"{nodes[0].name}: ok")) == 1
    verdict = played.results("Say what differs", status="ok")[-1]["said"]["ansible_facts"]["distribution_verdict"]
    assert (set(verdict["nodes"]), verdict["equal"]) == ({nodes[1].name, GONE, BLIND}, [nodes[0].name])
    assert manifest.builds["amd64"].md5 in verdict["nodes"][nodes[1].name]


def test_a_byte_on_the_controller_and_a_node_that_will_not_come_back(places: Places, nodes: list[Node]) -> None:
    """Its agent runs, and would not after a restart of the machine; another's runs no more."""
    manifest = read_manifest(places.dist)
    kept = {entry.file: (places.dist / entry.file).read_bytes() for entry in manifest.builds.values()}
    for name in kept:
        flip(places.dist / name)
    nodes[0].run(["systemctl", "disable", "--quiet", "heterofleet-agent"])
    nodes[1].run(["systemctl", "stop", "heterofleet-agent"])
    try:
        played = verify(places, nodes)
    finally:
        nodes[0].run(["systemctl", "enable", "--quiet", "heterofleet-agent"])
        nodes[1].run(["systemctl", "start", "heterofleet-agent"])
        for name, content in kept.items():
            (places.dist / name).chmod(0o644)
            (places.dist / name).write_bytes(content)
    assert played.rc != 0
    text = shown(played)
    assert [len(lines(text, str(places.dist), f" {arch} ", "WRONG")) for arch in ARCHITECTURES] == [1, 1], text
    assert len(lines(text, "WRONG")) == 2
    words = " ".join(text.split())
    assert f"{nodes[0].name}: its unit is not enabled" in words
    assert f"{nodes[1].name}: no agent runs; the control plane says that {nodes[1].name} is offline" in words


def test_another_build_on_the_control_plane_is_told_from_the_one_that_the_nodes_have(
    places: Places, nodes: list[Node], builds: Builds, tmp_path: Path
) -> None:
    """The controller has built anew: nobody has that yet, and all nodes differ in one way."""
    places.have(builds.newer)
    try:
        played = verify(places, nodes, fleet_token_file=str(tmp_path / "no-token"))
    finally:
        places.have(builds.first)
    assert played.rc != 0
    text = shown(played)
    old, new = read_manifest(builds.first), read_manifest(builds.newer)
    assert len(lines(text, "WRONG")) == 4
    assert f"another build: {old.version}/{old.commit}" in " ".join(text.split())
    both = f"{nodes[0].name}, {nodes[1].name}: has {old.release('amd64')}, wanted {new.release('amd64')} for amd64"
    assert both in " ".join(text.split())
    assert "The control plane does not say what it hears" in text
