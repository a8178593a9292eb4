"""All that an installation leaves on a node, as lines that can be compared."""

from __future__ import annotations

import json
import re

from tests.integration.distribution.site import DESCRIBED, UNIT
from tests.lab import Node

PLACES = (
    "/etc/heterofleet",
    "/opt/heterofleet",
    "/etc/systemd/system",
    "/usr/local/bin",
    "/var/lib/heterofleet",
    "/run/systemd/system",
)
# Every path with kind, mode, owners, size, link and contents. Of the agent's state only the folder itself: what lies in
# it is the agent's own work. The cache is what Python made of the build.
_TREE = (
    DESCRIBED
    + """
import sys
for place in sys.argv[1:]:
    for folder, folders, files in os.walk(place):
        if folder in ("/opt/heterofleet/cache", "/var/lib/heterofleet/agent"):
            folders[:], files = [], []
        for name in sorted([".", *folders, *files]):
            path = os.path.join(folder, name)
            print(path, *described(path))
"""
)
# What differs between two starts of one and the same service: times, numbers of processes and of control groups, what
# it has used so far, and the times of its last start in the texts of ExecStart. All else must be equal.
_PER_RUN = re.compile(
    r"(.*Timestamp|.*TimestampMonotonic|MainPID|ExecMainPID|InvocationID|ControlGroupId|CPUUsageNSec|TasksCurrent"
    r"|Memory(Current|Available|Peak)|IO(Read|Write)(Bytes|Operations)|StatusText|NFileDescriptorStore)\Z"
)
_TIMES = re.compile(r"(start_time|stop_time|pid|code|status)=[^;}]*")
_NODE = re.compile(r"/docker/[0-9a-f]{64}")  # each lab node's own place among the groups of this machine
_SETS = ("Requires", "Wants", "WantedBy", "Conflicts", "Before", "After")  # listed in the order of a hash table


def tree(node: Node) -> list[str]:
    return node.run(["python3", "-Ic", _TREE, *PLACES]).stdout.splitlines()


def shown(node: Node) -> dict[str, str]:
    """What systemd has of the service, without what is of one run only."""
    lines = node.run(["systemctl", "show", UNIT]).stdout.splitlines()
    found = {}
    for line in lines:
        name, _, value = line.partition("=")
        if not _PER_RUN.match(name):
            value = _NODE.sub("", _TIMES.sub(r"\1", value))
            found[name] = " ".join(sorted(value.split())) if name in _SETS else value
    return found


def status(node: Node) -> dict:
    return json.loads(node.run(["heterofleet-agent", "status", "--json"], check=False).stdout)


def pid(node: Node) -> str:
    return node.run(["systemctl", "show", "-p", "MainPID", "--value", UNIT]).stdout.strip()


def needs_to_run(node: Node, release: str) -> None:
    """The agent that runs is of this release, is the one that systemd started, and the control plane hears it."""
    said = status(node)
    assert said["version"].replace("/", "-", 1) == release.rpartition("-")[0]
    assert (said["registered"], str(said["pid"])) == (True, pid(node))
    assert node.run(["readlink", "/opt/heterofleet/current"]).stdout.strip() == f"releases/{release}"
    assert node.run(["systemctl", "is-enabled", UNIT]).stdout.strip() == "enabled"
    assert node.run(["test", "-e", "/opt/heterofleet/.undo"], check=False).returncode == 1
