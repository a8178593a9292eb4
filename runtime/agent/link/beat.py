"""Putting a heartbeat together: what changed is sent, what the server holds already is only named.

A section counts as held once the 200 of a beat that carried it has come. After a beat that failed, after an
answer of another control plane, and for what the server asks for, sections are sent in full again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Optional

from runtime.protocol import PROTOCOL
from runtime.protocol.codec import encode
from runtime.protocol.hardware import Host
from runtime.protocol.heartbeat import STEADY, UNCHANGING, Heartbeat, HeartbeatAnswer

HOST_LOAD = ("cpu_percent", "memory_used_mib", "disks", "uptime_s")
"""Members of ``host`` that are sent with every beat."""


@dataclass(frozen=True)
class Content:
    """What a beat says beside who sends it: members of :class:`Heartbeat` by name.

    An unchanging section that is missing or None is unknown now.
    """

    members: dict[str, Any] = field(default_factory=dict)


def digest(value: Any) -> str:
    """Opaque to the server; equal values give equal digests."""
    text = json.dumps(encode(value, drop_none=True), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def facts(host: Host) -> Host:
    """The host without its load: what the digest is of."""
    return dataclasses.replace(host, **dict.fromkeys(HOST_LOAD))


def load(host: Host) -> Host:
    """The host's load alone."""
    return Host(**{name: getattr(host, name) for name in HOST_LOAD})


class Composer:
    """Makes beats with rising ``seq`` and remembers what the server holds. For one thread.

    ``control_plane_id`` is who answered last, also before this start.
    """

    def __init__(self, control_plane_id: Optional[str] = None) -> None:
        self.control_plane_id = control_plane_id
        self._seq = 0
        self._held: dict[str, str] = {}
        self._kept: frozenset[str] = frozenset()
        self._digested: dict[str, tuple[Any, str]] = {}

    def compose(self, who: dict[str, Any], content: Content) -> Heartbeat:
        """The next beat. ``who`` are the members that name the sender (node_id, instance_id, run...)."""
        self._seq += 1
        members = dict(content.members)
        digests: dict[str, str] = {}
        for name in (*UNCHANGING, *(name for name in STEADY if name in self._kept)):
            value = members.get(name)
            if value is None:
                members.pop(name, None)
                continue
            digests[name] = self._digest(name, facts(value) if name == "host" else value)
            if self._held.get(name) != digests[name]:
                continue
            if name == "host":
                members[name] = load(value)
            else:
                del members[name]
        return Heartbeat(protocol=PROTOCOL, seq=self._seq, digests=digests, **who, **members)

    def accepted(self, beat: Heartbeat, answer: HeartbeatAnswer) -> bool:
        """The 200 of ``beat`` has come. True when the next beat must be full: another control plane answered."""
        changed = self.control_plane_id not in (None, answer.control_plane_id)
        self.control_plane_id = answer.control_plane_id
        self._held = {} if changed else dict(beat.digests)
        self._kept = frozenset(answer.keeps)
        for name in answer.send_full:
            self._held.pop(name, None)
        return changed

    def failed(self) -> None:
        """A beat was not answered with 200: who answers next may know nothing of this node."""
        self._held, self._kept = {}, frozenset()

    def _digest(self, name: str, value: Any) -> str:
        known = self._digested.get(name)
        if known is None or known[0] != value:
            known = (value, digest(value))
            self._digested[name] = known
        return known[1]
