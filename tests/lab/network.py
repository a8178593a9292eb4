"""The lab's network: a bridge with fixed addresses, the machine being 198.18.0.1 on it."""

from __future__ import annotations

import json
import re

from tests.lab import places
from tests.lab.process import LabError, run


def ensure() -> None:
    """Create the network unless it is there; one of the same name with another subnet is an error."""
    seen = run(["docker", "network", "inspect", places.NETWORK], check=False)
    if seen.returncode == 0:
        found = [part.get("Subnet") for part in json.loads(seen.stdout)[0]["IPAM"]["Config"]]
        if found != [places.SUBNET]:
            raise LabError(
                f"docker network {places.NETWORK} has {found}, wanted {places.SUBNET}: "
                f"remove it with `docker network rm {places.NETWORK}`"
            )
        return
    run(
        [
            "docker",
            "network",
            "create",
            f"--subnet={places.SUBNET}",
            f"--gateway={places.HOST_ADDRESS}",
            f"--label={places.LABEL}=network",
            "-o",
            f"com.docker.network.bridge.name={places.BRIDGE}",
            "-o",
            f"com.docker.network.driver.mtu={_outer_mtu()}",
            places.NETWORK,
        ]
    )


def remove() -> None:
    run(["docker", "network", "rm", places.NETWORK], check=False)


def exists() -> bool:
    return run(["docker", "network", "inspect", places.NETWORK], check=False).returncode == 0


def set_bridge_port(pid: int, forwarding: bool) -> None:
    """Let the bridge drop (or carry again) every frame of the container with this main process.

    Nothing on the node changes: its link stays up and its packets vanish, as behind a dead switch.
    """
    link = run(["nsenter", "-t", str(pid), "-n", "cat", "/proc/net/dev"]).stdout
    names = re.findall(r"^\s*(eth\d+):", link, re.MULTILINE)
    if not names:
        raise LabError("the node has no network link: it is cut off by `disconnect` already")
    # sysfs shows the mounter's network namespace, so the peer's number is asked over netlink.
    seen = json.loads(run(["nsenter", "-t", str(pid), "-n", "ip", "-j", "link", "show", names[0]]).stdout)
    peer = int(seen[0]["link_index"])
    for port in json.loads(run(["ip", "-j", "link", "show", "master", places.BRIDGE]).stdout):
        if port["ifindex"] == peer:
            run(["bridge", "link", "set", "dev", port["ifname"], "state", "3" if forwarding else "0"])
            return
    raise LabError(f"no port of {places.BRIDGE} has number {peer}")


def _outer_mtu() -> int:
    """The default route's packet size; larger ones would vanish on the way out of the machine."""
    for route in json.loads(run(["ip", "-j", "route", "show", "default"], check=False).stdout or "[]"):
        for link in json.loads(run(["ip", "-j", "link", "show", route["dev"]]).stdout):
            return min(1500, int(link["mtu"]))
    return 1500
