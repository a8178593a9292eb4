"""Nodes as if there had never been an agent, and a control plane that hands out these builds and no others."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.lab import Node
from tests.lab.control_plane import ControlPlane

# Quicker than the uninstall script, and it knows nothing of what was installed how.
BARE = """
systemctl stop heterofleet-agent 2>/dev/null || :
systemctl disable --quiet heterofleet-agent 2>/dev/null || :
docker ps -aq --filter label=heterofleet.task | xargs -r docker rm -f -v >/dev/null
awk '$2 ~ "^/run/heterofleet/" {print $2}' /proc/mounts | sort -r | xargs -r umount
rm -rf --one-file-system /opt/heterofleet /etc/heterofleet /var/lib/heterofleet /run/heterofleet \
    /usr/local/bin/heterofleet-agent /etc/systemd/system/heterofleet-agent.service \
    /etc/systemd/system/heterofleet-agent.service.d
systemctl daemon-reload
systemctl reset-failed heterofleet-agent 2>/dev/null || :
"""


def make_bare(nodes: Sequence[Node]) -> None:
    """As if there had never been an agent on these nodes."""
    for node in nodes:
        node.sh(BARE)


def publish(plane: ControlPlane, builds: Path) -> None:
    """From now on the control plane hands out these builds and no others."""
    shutil.rmtree(plane.builds_dir, ignore_errors=True)
    shutil.copytree(builds, plane.builds_dir)
