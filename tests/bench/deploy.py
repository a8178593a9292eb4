"""Bringing the agent to 3, 6 and 12 nodes by `playbooks/deploy.yml`, and again when nothing is to do, beside a floor.

The floor is taken on the same nodes in the same run: a bare playbook that copies a file of the build's size, renders a
unit and restarts it. The nodes are those that HF_LAB_NODES names, else 12 that are brought up for it; sizes that they
do not make up are left out.
"""

from __future__ import annotations

import secrets
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from runtime.protocol.manifest import read_manifest
from tests.bench.measure import Figure, Spread
from tests.e2e.roles.ansible import Fleet, Played
from tests.e2e.roles.bare import make_bare, publish
from tests.e2e.roles.builds import Builds
from tests.lab import Lab, Node, places
from tests.lab.control_plane import ControlPlane

SIZES = (3, 6, 12)
ROUNDS = 3
SECOND_SHARE = 0.5
UNIT = "hf-bench-floor.service"
FILE = "/opt/hf-bench-floor"
FLOOR_UNIT = f"""[Unit]
Description=The floor of a deployment, {{{{ inventory_hostname }}}}
[Service]
ExecStart=/bin/sleep infinity
Environment=WHAT={FILE}
[Install]
WantedBy=multi-user.target
"""
FLOOR = [
    {
        "name": "One file, one unit, one restart",
        "hosts": "nodes",
        "gather_facts": False,
        "tasks": [
            {
                "name": "The file",
                "ansible.builtin.copy": {"src": "file", "dest": FILE, "mode": "0755"},
            },
            {
                "name": "The unit",
                "ansible.builtin.template": {
                    "src": "unit.j2",
                    "dest": f"/etc/systemd/system/{UNIT}",
                    "mode": "0644",
                },
            },
            {
                "name": "The restart",
                "ansible.builtin.systemd_service": {
                    "name": UNIT,
                    "state": "restarted",
                    "enabled": True,
                    "daemon_reload": True,
                },
            },
        ],
    }
]


def clear_floor(nodes: Sequence[Node]) -> None:
    for node in nodes:
        node.sh(
            f"systemctl disable --now --quiet {UNIT} 2>/dev/null || :; "
            f"rm -f /etc/systemd/system/{UNIT} {FILE}; systemctl daemon-reload"
        )


def floor(nodes: Sequence[Node], folder: Path, size: int) -> Played:
    """The bare playbook on nodes where it was never run; ``size`` bytes that do not shrink."""
    clear_floor(nodes)
    bare = Fleet(None, nodes, folder)
    (folder / "file").write_bytes(secrets.token_bytes(size))
    (folder / "unit.j2").write_text(FLOOR_UNIT)
    (folder / "floor.yml").write_text(yaml.safe_dump(FLOOR, sort_keys=False))
    return bare.play(folder / "floor.yml")


def measure() -> list[Figure]:
    lab = Lab.attach() if places.share() else Lab.up(nodes=SIZES[-1])
    builds = Builds()
    size = read_manifest(builds.first).builds["amd64"].size
    plane = ControlPlane("bench-deploy")
    plane.remove()
    plane.start()
    sizes = [count for count in SIZES if count <= len(lab.nodes)] or [len(lab.nodes)]
    taken: dict[int, dict[str, list[float]]] = {
        count: {"floor": [], "first": [], "second": [], "ratio": [], "share": [], "changes": []} for count in sizes
    }
    nodes = lab.nodes[: max(sizes)]
    try:
        publish(plane, builds.first)
        with tempfile.TemporaryDirectory() as scratch:
            # Each size once a round, so that a machine that is busy for a while is so for all of them.
            for number in range(ROUNDS):
                for count in sizes:
                    make_bare(nodes)
                    folder = Path(scratch) / f"{number}-{count}"
                    folder.mkdir()
                    some = nodes[:count]
                    below = floor(some, folder, size)
                    fleet = Fleet(plane, some, folder, fleet_builds_dir=str(builds.first))
                    first = fleet.play("deploy.yml")
                    second = fleet.play("deploy.yml")
                    seen = taken[count]
                    seen["floor"].append(below.seconds)
                    seen["first"].append(first.seconds)
                    seen["second"].append(second.seconds)
                    seen["ratio"].append(first.seconds / below.seconds)
                    seen["share"].append(second.seconds / first.seconds)
                    seen["changes"].append(sum(map(len, second.changed.values())))
    finally:
        make_bare(nodes)
        clear_floor(nodes)
        plane.remove()
    figures: list[Figure] = []
    for count, seen in taken.items():
        figures.append(
            Figure(
                f"deploy.yml to {count} bare nodes, {ROUNDS} rounds",
                f"{Spread.of(seen['first']).text('s', 1)}, floor {Spread.of(seen['floor']).text('s', 1)}: "
                f"{Spread.of(seen['ratio']).text('times')}",
                "measured",
                True,
            )
        )
        share, changes = statistics.median(seen["share"]), int(sum(seen["changes"]))
        figures.append(
            Figure(
                f"deploy.yml again on {count} nodes",
                f"{Spread.of(seen['second']).text('s', 1)}: {share:.2f} of the first, {changes} changes",
                f"0 changes, at most {SECOND_SHARE:g} of the first",
                changes == 0 and share <= SECOND_SHARE,
            )
        )
    few, many = sizes[0], sizes[-1]
    if few < many:
        growth = {
            name: statistics.median(taken[many][name]) / statistics.median(taken[few][name])
            for name in ("first", "second", "floor")
        }
        figures.append(
            Figure(
                f"growth from {few} to {many} nodes",
                f"deploy {growth['first']:.2f} times, again {growth['second']:.2f}, floor {growth['floor']:.2f}",
                "measured",
                True,
            )
        )
    return figures
