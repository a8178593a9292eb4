"""What ``ibstat`` and ``ibstatus`` print of the same files: for texts that people send, since none is needed here.

``ibstat`` may end with an ``ibpanic`` after a good list, and writes numbers in decimal and rates without a unit.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Optional

from runtime.agent.hardware.infiniband import ports
from runtime.agent.hardware.infiniband.ports import Port
from runtime.agent.hardware.parsers import tables

_ADAPTER = re.compile(rf"\s*CA '({ports.NAME})'")
_PORT = re.compile(rf"\s*Port ({ports.NUMBER}):")
_STATUS = re.compile(rf"\s*Infiniband device '({ports.NAME})' port ({ports.NUMBER}) status:", re.IGNORECASE)
_LINE = re.compile(r"\s*([A-Za-z_ ]+?)\s*:\s*(.*)")
_PANIC = re.compile(rf"ibpanic:.*?(?:device|CA) '({ports.NAME})'")


def parse(text: str) -> dict[str, Any]:
    """Either tool's text, as :func:`ports.summary`."""
    found: list[Port] = []
    unreadable: list[str] = []
    hca, ca_type = "", None
    for line in tables.lines(text):
        panic, adapter, port = _PANIC.search(line), _ADAPTER.fullmatch(line), _PORT.fullmatch(line)
        status, pair = _STATUS.fullmatch(line), _LINE.fullmatch(line)
        if panic is not None:
            unreadable.append(panic[1])
        elif adapter is not None:
            hca, ca_type = adapter[1], None
        elif status is not None:
            hca, ca_type = status[1], None
            found.append(Port(hca, int(status[2])))
        elif port is not None and hca:
            found.append(Port(hca, int(port[1]), ca_type))
        elif pair is not None and pair[1] == "CA type":
            ca_type = ports.word_of(pair[2])
        elif pair is not None and found and found[-1].hca == hca:
            found[-1] = _with(found[-1], pair[1].lower(), pair[2])
    return ports.summary(found, unreadable)


def _with(port: Port, key: str, value: Optional[str]) -> Port:
    if key == "default gid":
        prefix, zero = ports.gid_of(value)
        return dataclasses.replace(port, gid_prefix=prefix, gid_zero=zero)
    known: dict[str, Any] = {
        "state": {"state": ports.state_of(value)},
        "physical state": {"phys_state": ports.phys_state_of(value)},
        "phys state": {"phys_state": ports.phys_state_of(value)},
        "rate": {"rate_gbps": ports.rate_of(value)},
        "base lid": {"lid": ports.lid_of(value)},
        "sm lid": {"sm_lid": ports.lid_of(value)},
        "link layer": {"link_layer": ports.link_layer_of(value)},
        "link_layer": {"link_layer": ports.link_layer_of(value)},
    }
    return dataclasses.replace(port, **known.get(key, {}))
