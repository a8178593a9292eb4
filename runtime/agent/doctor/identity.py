"""Who this node says it is: the stored identity against this machine and the settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from runtime.agent.doctor.configuration import AS_ROOT
from runtime.agent.doctor.findings import Finding, finding, ok, unknown, warning
from runtime.agent.link.identity import FILE, Machine, is_another_machines, this_machine
from runtime.protocol.names import is_node_id, node_id_from_hostname


@dataclass(frozen=True)
class IdentityFacts:
    """``stored`` None: there is no file, or ``error`` says why it cannot be used. ``denied``: not by this user."""

    path: str
    stored: Optional[dict[str, Any]]
    machine: Machine
    configured: Optional[str]
    error: str = ""
    denied: bool = False


def look_at_identity(state_dir: Path, configured: Optional[str]) -> IdentityFacts:
    """Reads and changes nothing, not even a torn file."""
    path = state_dir / FILE
    common = (this_machine(), configured)
    try:
        stored = json.loads(path.read_bytes())
    except PermissionError:
        return IdentityFacts(str(path), None, *common, denied=True)
    except FileNotFoundError:
        return IdentityFacts(str(path), None, *common)
    except (OSError, ValueError) as error:
        return IdentityFacts(str(path), None, *common, error=getattr(error, "strerror", None) or "it is no JSON")
    if not isinstance(stored, dict) or not is_node_id(str(stored.get("node_id"))):
        return IdentityFacts(str(path), None, *common, error="it holds no node id")
    return IdentityFacts(str(path), stored, *common)


def judge_identity(facts: IdentityFacts) -> Finding:
    if facts.denied:
        return finding("identity", [unknown(f"{facts.path} cannot be read by this user", AS_ROOT)])
    if facts.error:
        words = f"{facts.path} cannot be used: {facts.error}"
        advice = "the agent sets it aside at its next start and becomes a new instance"
        return finding("identity", [warning(words, "the identity of this node", advice)])
    if facts.stored is None:
        name = facts.configured or node_id_from_hostname(facts.machine.hostname)
        return finding("identity", [ok(f"none yet; the first start takes the node id {name}")])
    points = []
    stored = facts.stored
    if is_another_machines(stored, facts.machine):
        points.append(
            warning(
                f"the state folder was made on another machine than this one ({facts.path})",
                "a state folder of this machine",
                "a copy of a node: the agent becomes a new instance at its next start; never copy state folders",
            )
        )
    elif facts.machine.fingerprint is None:
        points.append(unknown("this machine has neither a machine-id nor a DMI UUID that can be read: whether the "
                              "state folder is a copy is not known", "systemd-machine-id-setup"))  # fmt: skip
    if facts.configured is not None and facts.configured != stored["node_id"]:
        points.append(
            warning(
                f"the settings say {facts.configured}, the state folder belongs to {stored['node_id']}",
                "one node id",
                "the agent takes the new one only when nothing of the old one is left: see heterofleet-agent status",
            )
        )
    told = f"node {stored['node_id']}, instance {stored.get('instance_id')}, run {stored.get('run')}"
    return finding("identity", [*points, ok(told)])
