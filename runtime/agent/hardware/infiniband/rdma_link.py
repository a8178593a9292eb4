"""What ``rdma link`` prints, as lines or with ``-j``: for texts that people send.

It has no word for the link's layer. The kernel tells a subnet's prefix and lids of InfiniBand ports alone; an interface
beside them may be that of IP over InfiniBand, and without them it is Ethernet's. Rates are not told.
"""

from __future__ import annotations

import json
import re
from typing import Any

from runtime.agent.hardware.infiniband import ports
from runtime.agent.hardware.infiniband.ports import Port
from runtime.agent.hardware.parsers import tables

_LINK = re.compile(rf"\s*(?:link\s+|[0-9]+/[0-9]+:\s*)({ports.NAME})/({ports.NUMBER}):?(?=\s|$)")
_KEYS = ("subnet_prefix", "lid", "sm_lid", "state", "physical_state", "netdev")


def parse(text: str) -> dict[str, Any]:
    """As :func:`ports.summary`."""
    plain = "\n".join(tables.lines(text))
    said = _of_json(plain) if plain.lstrip().startswith("[") else _of_lines(plain)
    return ports.summary([_port(each) for each in said], [], none=re.fullmatch(r"\s*\[\s*\]\s*", plain) is not None)


def _of_lines(text: str) -> list[dict[str, str]]:
    """A line may be folded; every word that is no key of ours stands for itself."""
    found: list[dict[str, str]] = []
    for line in text.split("\n"):
        link = _LINK.match(line)
        if link is not None:
            found.append({"hca": link[1], "port": link[2]})
        if found:
            words = line[link.end() if link is not None else 0 :].split()
            for key, value in zip(words, words[1:]):
                if key in _KEYS:
                    found[-1].setdefault(key, value)
    return found


def _of_json(text: str) -> list[dict[str, str]]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [
        {"hca": entry["ifname"], **{key: str(entry[key]) for key in ("port", *_KEYS) if entry.get(key) is not None}}
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("ifname"), str)
        and re.fullmatch(ports.NAME, entry["ifname"])
        if re.fullmatch(ports.NUMBER, str(entry.get("port")))
    ]


def _port(said: dict[str, str]) -> Port:
    infiniband = "subnet_prefix" in said or "lid" in said
    return Port(
        hca=said["hca"],
        port=int(said["port"]),
        state=ports.state_of(said.get("state")),
        phys_state=ports.phys_state_of(said.get("physical_state")),
        lid=ports.lid_of(said.get("lid")),
        sm_lid=ports.lid_of(said.get("sm_lid")),
        link_layer=ports.INFINIBAND if infiniband else ports.ETHERNET if "netdev" in said else None,
        gid_prefix=ports.prefix_of(said.get("subnet_prefix")),
    )
