"""One port of a host channel adapter, and its values as the kernel and the tools write them.

State, rate and their like: Linux, Documentation/ABI/stable/sysfs-class-infiniband. Every file may be missing.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Optional

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
ACTIVE, INITIALIZING = "active", "init"
LINK_UP = "LinkUp"
NO_LID = 0xFFFF

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:Gb/sec)?(?:\s|\(|$)")
_GID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}", re.IGNORECASE)
_STATES = {"initializing": INITIALIZING, "initialize": INITIALIZING}


@dataclass(frozen=True)
class Port:
    """``state`` is the logical one in small letters (``active``, ``init``, ``down``, ``armed``), ``phys_state`` the
    cable's. A port that is down has a ``rate_gbps`` all the same: it is no capacity. ``link_layer`` Ethernet is RoCE.
    ``gid_prefix``: the first half of GID 0, which does not prove that two nodes share a fabric."""

    hca: str
    port: int
    ca_type: Optional[str] = None
    state: Optional[str] = None
    phys_state: Optional[str] = None
    rate_gbps: Optional[float] = None
    lid: Optional[int] = None
    sm_lid: Optional[int] = None
    link_layer: Optional[str] = None
    gid_prefix: Optional[str] = None
    gid_zero: Optional[bool] = None
    numa_node: Optional[int] = None

    @property
    def trouble(self) -> Optional[str]:
        """Why it carries nothing, in words; None when it does, or when that is not known."""
        if self.state in (None, ACTIVE):
            if self.link_layer == INFINIBAND and self.sm_lid == 0 and self.state == ACTIVE:
                return "no subnet manager is known to it"
            return None
        if self.gid_zero and self.phys_state == LINK_UP:
            return "its addresses are all zero: a virtual function that is not set up"
        if self.state == INITIALIZING and self.phys_state == LINK_UP:
            return "the cable is fine, but no subnet manager has set it up"
        if self.phys_state == "Polling":
            return "down: nothing answers at the other end of the cable"
        if self.phys_state == "Disabled":
            return "down: switched off"
        return f"{self.state}" + (f" ({self.phys_state})" if self.phys_state else "")


def state_of(text: Optional[str]) -> Optional[str]:
    """``active`` of ``4: ACTIVE`` and of ``Active``."""
    word = _after_number(text)
    return None if word is None else _STATES.get(word.lower(), word.lower())


def phys_state_of(text: Optional[str]) -> Optional[str]:
    """``LinkUp`` of ``5: LinkUp``."""
    return _after_number(text)


def rate_of(text: Optional[str]) -> Optional[float]:
    """400.0 of ``400 Gb/sec (4X NDR)`` and of ibstat's ``400``."""
    found = _RATE.match((text or "").strip())
    return None if found is None else float(found[1])


def lid_of(text: Optional[str]) -> Optional[int]:
    """Of ``0x33bf`` and of ibstat's decimal."""
    try:
        return int((text or "").strip(), 0)
    except ValueError:
        return None


def gid_of(text: Optional[str]) -> tuple[Optional[str], Optional[bool]]:
    """(the subnet's prefix, whether the whole GID is zero); None each where there is no GID."""
    found = _GID.search(text or "")
    if found is None:
        return None, None
    return found[0][:19].lower(), set(found[0]) <= {"0", ":"}


def word_of(text: Optional[str]) -> Optional[str]:
    """A word of the kernel; None for none, and for the "unknown" of a script that could not read the file."""
    word = (text or "").strip()
    return None if word.lower() in ("", "unknown", "n/a") else word


def summary(ports: list[Port], unreadable: list[str]) -> dict[str, Any]:
    """``{"ports", "active", "infiniband", "unreadable"}``: all of them, how many are active, how many are no RoCE."""
    return {
        "ports": [dataclasses.asdict(port) for port in ports],
        "active": sum(port.state == ACTIVE for port in ports),
        "infiniband": sum(port.link_layer == INFINIBAND for port in ports),
        "unreadable": unreadable,
    }


def _after_number(text: Optional[str]) -> Optional[str]:
    return word_of((text or "").rpartition(":")[2])
