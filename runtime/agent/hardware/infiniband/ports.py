"""One port of a host channel adapter, and its values as the kernel and the tools write them.

State, rate and their like: Linux, Documentation/ABI/stable/sysfs-class-infiniband. Every file may be missing.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Optional

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
ACTIVE, INITIALIZING, DOWN = "active", "init", "down"
LINK_UP, POLLING, DISABLED = "LinkUp", "Polling", "Disabled"
NO_LID = 0xFFFF

NUMBER = r"[0-9]{1,3}"
"""A port's number as tools print it."""
NAME = r"[^\s/']{1,64}"
"""An adapter's; the kernel knows no longer ones, and of no longer words."""
LONGEST = 64

_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*(?:Gb/sec)?(?:\s|\(|$)")
_LID = re.compile(r"0x[0-9a-f]{1,8}|[0-9]{1,8}", re.IGNORECASE)
_GROUPS = r"(?:[0-9a-f]{4}:){%d}[0-9a-f]{4}"
_GID = re.compile(_GROUPS % 7, re.IGNORECASE)
_PREFIX = re.compile(_GROUPS % 3, re.IGNORECASE)
_NUMBER_BEHIND = re.compile(r"\s*\([0-9]+\)$")
_STATES = {"initializing": INITIALIZING, "initialize": INITIALIZING}
_PHYS_STATES = {
    **{word.lower(): word for word in ("Sleep", POLLING, DISABLED, LINK_UP, "LinkErrorRecovery")},
    "linkerrorrecover": "LinkErrorRecovery",
    "portconfigurationtraining": "PortConfigurationTraining",
    "portconfigurationtrainning": "PortConfigurationTraining",
}
"""The kernel's words by what is left of all ways of writing them."""


class Fault(str, Enum):
    """Why a port carries nothing, in words."""

    NO_MANAGER_KNOWN = "no subnet manager is known to it"
    NO_MANAGER = "the cable is fine, but no subnet manager has set it up"
    VF_NOT_SET_UP = "its addresses are all zero: a virtual function that is not set up"
    NO_PEER = "down: nothing answers at the other end of the cable"
    SWITCHED_OFF = "down: switched off"
    OTHER = "not active"


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
    def fault(self) -> Optional[Fault]:
        """Why it carries nothing; None when it does, or when that is not known."""
        if self.state in (None, ACTIVE):
            unmanaged = self.link_layer == INFINIBAND and (self.sm_lid == 0 or self.lid == NO_LID)
            return Fault.NO_MANAGER_KNOWN if unmanaged and self.state == ACTIVE else None
        if self.phys_state == LINK_UP:
            if self.gid_zero:
                return Fault.VF_NOT_SET_UP
            if self.state == INITIALIZING:
                return Fault.NO_MANAGER
        return {POLLING: Fault.NO_PEER, DISABLED: Fault.SWITCHED_OFF}.get(self.phys_state or "", Fault.OTHER)

    @property
    def trouble(self) -> Optional[str]:
        """The fault in words."""
        if self.fault is Fault.OTHER:
            return f"{self.state}" + (f" ({self.phys_state})" if self.phys_state else "")
        return None if self.fault is None else self.fault.value


def state_of(text: Optional[str]) -> Optional[str]:
    """``active`` of ``4: ACTIVE``, of ``Active`` and of ``PORT_ACTIVE (4)``."""
    word = _bare(text)
    if word is None:
        return None
    word = word.lower()
    word = word[len("port_") :] if word.startswith("port_") else word
    return _STATES.get(word, word)


def phys_state_of(text: Optional[str]) -> Optional[str]:
    """``LinkUp`` of ``5: LinkUp`` and of ``LINK_UP (5)``."""
    word = _bare(text)
    return None if word is None else _PHYS_STATES.get(re.sub(r"[_ ]", "", word).lower(), word)


def rate_of(text: Optional[str]) -> Optional[float]:
    """400.0 of ``400 Gb/sec (4X NDR)`` and of ibstat's ``400``."""
    found = _RATE.match((text or "").strip())
    return None if found is None else float(found[1])


def lid_of(text: Optional[str]) -> Optional[int]:
    """Of ``0x33bf`` and of ibstat's decimal."""
    found = _LID.fullmatch((text or "").strip())
    return None if found is None else int(found[0], 16 if found[0][:2].lower() == "0x" else 10)


def gid_of(text: Optional[str]) -> tuple[Optional[str], Optional[bool]]:
    """(the subnet's prefix, whether the whole GID is zero); None each where there is no GID."""
    found = _GID.search(text or "")
    if found is None:
        return None, None
    return found[0][:19].lower(), set(found[0]) <= {"0", ":"}


def prefix_of(text: Optional[str]) -> Optional[str]:
    """A subnet's prefix that stands alone."""
    found = _PREFIX.fullmatch((text or "").strip())
    return None if found is None else found[0].lower()


def word_of(text: Optional[str]) -> Optional[str]:
    """A word of the kernel; None for none, and for the "unknown" of a script that could not read the file."""
    word = (text or "").strip()
    return None if word.lower() in ("", "unknown", "n/a") or len(word) > LONGEST else word


def link_layer_of(text: Optional[str]) -> Optional[str]:
    """InfiniBand or Ethernet; None for "Unspecified" and its like. Old tools shorten the former."""
    word = word_of(text)
    known = {"infiniband": INFINIBAND, "ib": INFINIBAND, "ethernet": ETHERNET}
    return None if word is None else known.get(word.lower())


def summary(ports: list[Port], unreadable: list[str], *, none: bool = False) -> dict[str, Any]:
    """``{"ports", "active", "infiniband", "unreadable"}``: all of them, how many are active, how many are no RoCE; null
    where the text does not tell. ``none``: it says itself that there is no port. What a text says twice is told once,
    as it was said last. ``problem``: why a port carries nothing, in words."""
    once = list({(port.hca, port.port): port for port in ports}.values())
    return {
        "ports": [{**dataclasses.asdict(port), "problem": port.trouble} for port in once],
        "active": _count([port.state for port in once], ACTIVE, none),
        "infiniband": _count([port.link_layer for port in once], INFINIBAND, none),
        "unreadable": list(dict.fromkeys(unreadable)),
    }


def _count(said: list[Optional[str]], wanted: str, none: bool) -> Optional[int]:
    told = [word for word in said if word is not None]
    return sum(word == wanted for word in told) if told or none else None


def _bare(text: Optional[str]) -> Optional[str]:
    """A word without the number before or behind it."""
    return word_of(_NUMBER_BEHIND.sub("", (text or "").strip()).rpartition(":")[2])
