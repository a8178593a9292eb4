"""Ports as the heartbeat and the inventory tell of them, with the fabric that the settings name. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from runtime.agent.hardware.infiniband.look import Looked
from runtime.agent.hardware.infiniband.ports import ACTIVE, INFINIBAND, Port
from runtime.protocol.codec import encode
from runtime.protocol.hardware import Hca

NO_INFINIBAND = "no InfiniBand: cannot take part in multi-node replicas"
UNREADABLE = "tells nothing of its ports"


def by_adapter(fabrics: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Adapter -> fabric, out of the settings' ``fabrics``; the first that names it."""
    found: dict[str, str] = {}
    for fabric in fabrics:
        for hca in fabric.get("hcas", []):
            found.setdefault(hca, fabric["name"])
    return found


def hcas_of(looked: Looked, fabrics: Mapping[str, str]) -> list[Hca]:
    """Each port, then each adapter that tells of none. A GID prefix never names a fabric."""
    return [
        *(
            Hca(
                name=port.hca,
                port=port.port,
                state=port.state,
                rate_gbps=port.rate_gbps,
                link_layer=port.link_layer,
                gid_prefix=port.gid_prefix,
                numa_node=port.numa_node,
                fabric=fabrics.get(port.hca),
            )
            for port in looked.ports
        ),
        *(Hca(name, fabric=fabrics.get(name)) for name in looked.unreadable),
    ]


def adapters(looked: Looked, fabrics: Mapping[str, str]) -> list[dict[str, Any]]:
    """The same with ``problem``: why a port carries nothing, in words."""
    problems = [*(port.trouble for port in looked.ports), *(UNREADABLE for _ in looked.unreadable)]
    return [{**encode(hca), "problem": problem} for hca, problem in zip(hcas_of(looked, fabrics), problems)]


def cannot(looked: Looked) -> Optional[str]:
    """Why this node's InfiniBand is of no use to tasks on several nodes; None when a port is, or may be.

    ``unreadable`` adapters prove nothing: with one of them the answer is that it is not known.
    """
    infiniband = [port for port in looked.ports if port.link_layer in (INFINIBAND, None)]
    if any(may_carry(port) for port in infiniband):
        return None
    if looked.unreadable:
        return f"InfiniBand not known: cannot read {', '.join(looked.unreadable)}"
    if not infiniband:
        return NO_INFINIBAND
    why = "; ".join(f"{port.hca} port {port.port}: {port.trouble}" for port in infiniband)
    return f"no InfiniBand port that carries data ({why}): cannot take part in multi-node replicas"


def may_carry(port: Port) -> bool:
    return port.state in (ACTIVE, None) and port.trouble is None


def lines(hcas: list[dict[str, Any]]) -> list[str]:
    """For people: a line a port."""
    return [
        "  ".join(
            word
            for word in (
                one["name"] if one["port"] is None else f"{one['name']} port {one['port']}",
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
