"""What ``ibv_devinfo`` prints, with and without ``-v``: for texts that people send.

Its ``transport`` says InfiniBand of RoCE too; only ``link_layer`` tells them apart. Lids are decimal, 65535 is none.
The rate is told by ``-v`` alone, as a lane's speed and how many lanes there are; so are the cable's state and the GIDs.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Optional

from runtime.agent.hardware.infiniband import ports
from runtime.agent.hardware.infiniband.ports import Port
from runtime.agent.hardware.parsers import tables

_ADAPTER = re.compile(rf"\s*hca_id:\s*({ports.NAME})")
_PORT = re.compile(rf"\s*port:\s*({ports.NUMBER})")
_LINE = re.compile(r"\s*([a-z_]+|GID\[\s*0\]):\s*(.*)")
_LANES = re.compile(r"(1|2|4|8|12)X(?:\s|$)")
_LANE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?) Gbps")


def parse(text: str) -> dict[str, Any]:
    """As :func:`ports.summary`."""
    found: list[dict[str, str]] = []
    hca = ""
    for line in tables.lines(text):
        adapter, port, pair = _ADAPTER.fullmatch(line), _PORT.fullmatch(line), _LINE.fullmatch(line)
        if adapter is not None:
            hca = adapter[1]
        elif port is not None and hca:
            found.append({"hca": hca, "port": port[1]})
        elif pair is not None and found and found[-1]["hca"] == hca:
            found[-1].setdefault(re.sub(r"\s", "", pair[1]), pair[2])
    return ports.summary([_port(each) for each in found], [])


def _port(said: dict[str, str]) -> Port:
    prefix, zero = _gid(said.get("GID[0]"))
    return Port(
        hca=said["hca"],
        port=int(said["port"]),
        state=ports.state_of(said.get("state")),
        phys_state=ports.phys_state_of(said.get("phys_state")),
        rate_gbps=_rate(said.get("active_width"), said.get("active_speed")),
        lid=ports.lid_of(said.get("port_lid")),
        sm_lid=ports.lid_of(said.get("sm_lid")),
        link_layer=ports.link_layer_of(said.get("link_layer")),
        gid_prefix=prefix,
        gid_zero=zero,
    )


def _rate(width: Optional[str], speed: Optional[str]) -> Optional[float]:
    """``4X (2)`` lanes of ``25.0 Gbps (32)`` each; a speed that is ``invalid`` is none."""
    lanes, lane = _LANES.match(width or ""), _LANE.match(speed or "")
    return None if lanes is None or lane is None else int(lanes[1]) * float(lane[1])


def _gid(text: Optional[str]) -> tuple[Optional[str], Optional[bool]]:
    """Of ``fe80:0000:...`` and of ``fe80::1:2, RoCE v2``."""
    try:
        return ports.gid_of(ipaddress.IPv6Address((text or "").partition(",")[0].strip()).exploded)
    except ValueError:
        return None, None
