"""Taking nodes for a scenario's platforms and giving them back, for molecule's create and destroy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.roles.bare import make_bare, publish
from tests.e2e.roles.builds import Builds
from tests.e2e.roles.control_plane.server_builds import ServerBuilds
from tests.e2e.roles.control_plane.site import certificate
from tests.integration.distribution.authority import Authority
from tests.lab import Lab, LabError, Node, places, ssh
from tests.lab.control_plane import ControlPlane

FACTS = "lab.json"
"""In molecule's folder of the scenario: what the inventory knows of the lab."""
MADE_FROM = 100
"""Nodes that are made for one scenario have numbers from here on: nobody's share has them."""


def create(lab: Lab, scenario: str, folder: Path, platforms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Bare nodes, one for each platform in their order, builds, and a control plane that hands them out.

    A platform with ``release`` gets a node of that Debian release that is made for it. Where a platform is of the group
    control_plane, none runs on this machine. Returns what is written for the inventory.
    """
    share = lab.nodes
    shared = [one for one in platforms if "release" not in one]
    if len(share) < len(shared):
        raise LabError(f"{scenario} works on {len(shared)} nodes, and there are {[node.name for node in share]}")
    taken: dict[str, Node] = {}
    made: list[int] = []
    for one in platforms:
        if "release" in one:
            index = MADE_FROM + 4 * share[0].index + len(made)
            made.append(index)
            taken[one["name"]] = lab.make_node(index, one["release"], cards=0)
        else:
            taken[one["name"]] = share[len(taken) - len(made)]
    make_bare([node for node in taken.values() if node.index not in made])
    builds = Builds()
    plane = _plane(scenario)
    plane.remove()
    authority = Authority(folder).file
    by_role = [taken[one["name"]].address for one in platforms if "control_plane" in one.get("groups", ())]
    server: dict[str, str] = {}
    if by_role:
        plane.prepare()  # its key only
        certificate(folder, by_role[0])
        server = {"server_builds": str(ServerBuilds()["first"]), "tls": str(folder)}
    else:
        plane.start()
        publish(plane, builds.first)
    facts = {
        **server,
        "url": f"https://{by_role[0]}:3333" if by_role else plane.url,
        "key_file": str(plane.key_file),
        "token_file": str(plane.token_file),
        "builds": str(builds.first),
        "newer_builds": str(builds.newer),
        "handed_out": str(plane.builds_dir),
        "first_release": builds.release(builds.first),
        "newer_release": builds.release(builds.newer),
        "mirror_url": f"http://{plane.settings['mirror_listen']}",
        "ca_file": str(authority),
        "task_image": lab.task_image,
        "made": made,
        "nodes": {name: {"name": node.name, "address": node.address} for name, node in taken.items()},
    }
    places.write_atomically(folder / FACTS, json.dumps(facts, indent=1).encode(), 0o600)
    instances = [
        {
            "instance": one["name"],
            "address": taken[one["name"]].address,
            "user": one.get("user", "root"),
            "port": 22,
            "identity_file": str(ssh.key()),
        }
        for one in platforms
    ]
    places.write_atomically(folder / "instance_config.yml", yaml.safe_dump(instances).encode())
    return facts


def destroy(lab: Lab, scenario: str, folder: Path) -> bool:
    """The nodes bare again, those that were made gone, no control plane. False: there was nothing to give back."""
    _plane(scenario).remove()
    try:
        facts = json.loads((folder / FACTS).read_text())
    except FileNotFoundError:
        return False
    for index in facts["made"]:
        lab.remove_node(index)
    kept = {node.name: node for node in lab.nodes}
    make_bare([kept[one["name"]] for one in facts["nodes"].values() if one["name"] in kept])
    (folder / FACTS).unlink()
    return True


def forget(folder: Path) -> None:
    """Molecule's own notes of a scenario."""
    shutil.rmtree(folder, ignore_errors=True)


def _plane(scenario: str) -> ControlPlane:
    return ControlPlane(f"molecule-{scenario}", mirror_listen=f"{places.HOST_ADDRESS}:{places.port(2)}")
