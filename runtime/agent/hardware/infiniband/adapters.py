"""Ports as the heartbeat and the inventory tell of them, with the fabric that the settings name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from runtime.agent.hardware.infiniband.ports import ACTIVE, INFINIBAND, Port

NO_INFINIBAND = "no InfiniBand: cannot take part in multi-node replicas"


def adapters(ports: list[Port], fabrics: Mapping[str, str]) -> list[dict[str, Any]]:
    """``hcas`` in the heartbeat's keys (rate in Gb/s), and ``problem``: why a port carries nothing, in words.

    ``fabrics``: adapter -> fabric, out of the settings; a GID prefix never names one.
    """
    return [
        {
            "name": port.hca,
            "port": port.port,
            "state": port.state,
            "rate_gbps": port.rate_gbps,
            "link_layer": port.link_layer,
            "gid_prefix": port.gid_prefix,
            "numa_node": port.numa_node,
            "fabric": fabrics.get(port.hca),
            "problem": port.trouble,
        }
        for port in ports
    ]


def cannot(ports: list[Port], unreadable: list[str]) -> Optional[str]:
    """Why this node's InfiniBand is of no use to tasks on several nodes; None when a port is, or may be.

    ``unreadable`` adapters prove nothing: with one of them the answer is that it is not known.
    """
    infiniband = [port for port in ports if port.link_layer in (INFINIBAND, None)]
    if any(port.state in (ACTIVE, None) and port.trouble is None for port in infiniband):
        return None
    if unreadable:
        return f"InfiniBand not known: cannot read {', '.join(unreadable)}"
    if not infiniband:
        return NO_INFINIBAND
    why = "; ".join(f"{port.hca} port {port.port}: {port.trouble}" for port in infiniband)
    return f"no InfiniBand port that carries data ({why}): cannot take part in multi-node replicas"


def lines(hcas: list[dict[str, Any]]) -> list[str]:
    """For people: a line a port."""
    return [
        "  ".join(
            word
            for word in (
                f"{one['name']} port {one['port']}",
                one["link_layer"] or "-",
                one["state"] or "-",
                "-" if one["rate_gbps"] is None else f"{one['rate_gbps']:g} Gb/s",
                f"prefix {one['gid_prefix'] or '-'}",
                f"NUMA {'-' if one['numa_node'] is None else one['numa_node']}",
                f"fabric {one['fabric'] or '-'}",
                one["problem"] or "",
            )
            if word
        )
        for one in hcas
    ]
