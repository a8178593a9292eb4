"""Who this agent is: node id, instance and run, kept in the state folder.

The instance belongs to one machine: a state folder that was copied to another (other fingerprint) gets a new
instance. The run grows at every start, so that the server can order beats of one instance. What cannot be read
today proves nothing: only a part of the fingerprint that is known on both sides and differs makes another machine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import socket
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from runtime.agent.state import StateError, make_state_dir, unwritable, write_durably
from runtime.agent.status import FILE as STATUS_FILE
from runtime.agent.status import read_status
from runtime.protocol.names import is_node_id, node_id_from_hostname

log = logging.getLogger(__name__)

FILE = "identity.json"
MACHINE_ID = Path("/etc/machine-id")
PRODUCT_UUID = Path("/sys/class/dmi/id/product_uuid")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

NO_MACHINE_ID = frozenset({"uninitialized"})
"""What systemd writes into an image that has not booted yet."""
NO_PRODUCT_UUID = frozenset(
    {
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "03000200-0400-0500-0006-000700080009",
        "not settable",
        "not specified",
        "not present",
    }
)
"""What firmware says whose maker gave it no UUID: thousands of machines say the same."""

MachineParts = tuple[Optional[str], Optional[str]]
"""machine-id and DMI product UUID, hashed one by one; None where it cannot be read."""


class IdentityError(Exception):
    """The identity cannot be taken: the settings contradict what the state folder holds."""


@dataclass(frozen=True)
class Machine:
    """What identifies the machine: ``fingerprint`` is machine-id and DMI product UUID together, hashed (None
    when neither can be read), ``parts`` the same one by one; MAC addresses do not count, they change with the
    network."""

    hostname: str
    fingerprint: Optional[str]
    boot_id: Optional[str]
    parts: MachineParts = (None, None)


def this_machine() -> Machine:
    found = (_line(MACHINE_ID, NO_MACHINE_ID), _line(PRODUCT_UUID, NO_PRODUCT_UUID))
    fingerprint = _hashed("\n".join(part or "" for part in found)) if any(found) else None
    parts = (_hashed(found[0]) if found[0] else None, _hashed(found[1]) if found[1] else None)
    return Machine(socket.gethostname(), fingerprint, _line(BOOT_ID), parts)


def contradicts(known: Any, parts: MachineParts) -> bool:
    """Whether ``parts`` are another machine's than the stored ``known`` ones: some part is known twice and differs."""
    if not isinstance(known, (list, tuple)):
        return False
    return any(one and other and one != other for one, other in zip(known, parts))


def is_another_machines(stored: dict[str, Any], machine: Machine) -> bool:
    """Whether a stored identity was made on another machine than this one."""
    if any(stored.get("parts") or ()) and any(machine.parts):
        return contradicts(stored["parts"], machine.parts)
    fingerprint = stored.get("fingerprint")  # an earlier release stored no parts
    return None not in (fingerprint, machine.fingerprint) and fingerprint != machine.fingerprint


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _line(path: Path, none: frozenset[str] = frozenset()) -> Optional[str]:
    try:
        text = path.read_text("utf-8", "replace").strip().lower()
    except OSError:
        return None
    return None if text in none else text or None


class Identity:
    """Node id, instance and run of this agent; changes are on disk before they show.

    ``defaulted``: the node id came from the hostname, so it may be given up for a free one. ``copied``: the state
    folder came from another machine. ``booted``: the machine was started since the folder was used last.
    """

    def __init__(
        self, path: Path, stored: dict[str, Any], machine: Machine, *, copied: bool = False, booted: bool = False
    ) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stored = stored
        self.hostname = machine.hostname
        # A machine of which nothing can be read must not pass for the one that the folder comes from.
        self.fingerprint: Optional[str] = stored["fingerprint"] if machine.fingerprint is not None else None
        self.boot_id = machine.boot_id
        self.parts = machine.parts
        self.copied = copied
        self.booted = booted

    @property
    def node_id(self) -> str:
        return str(self._stored["node_id"])

    @property
    def instance_id(self) -> str:
        return str(self._stored["instance_id"])

    @property
    def run(self) -> int:
        return int(self._stored["run"])

    @property
    def defaulted(self) -> bool:
        return bool(self._stored["defaulted"])

    @property
    def former_node_ids(self) -> list[str]:
        """Names that this agent gave up by force: what it had claimed under them is still theirs."""
        return list(self._stored.get("former_node_ids", ()))

    def take_run(self, run: int) -> None:
        """The server knows a higher run than ours: go on from ``run``."""
        self._change(run=run)

    def new_instance(self) -> None:
        """Another machine answers to this instance: be a new one."""
        self._change(instance_id=str(uuid.uuid4()), run=1)

    def take_spare_node_id(self) -> str:
        """The defaulted id belongs to somebody else: take ``<hostname>-<6 hex>``."""
        self._change(node_id=spare_node_id(self.hostname))
        return self.node_id

    def _change(self, **values: Any) -> None:
        with self._lock:
            changed = {**self._stored, **values}
            write_durably(self._path, changed)
            self._stored = changed


def take_identity(
    state_dir: Path,
    configured: Optional[str],
    *,
    holds_work: Callable[[str], Optional[str]] = lambda _node_id: None,
    adopt: bool = False,
    machine: Optional[Machine] = None,
) -> Identity:
    """The identity for this start, stored with its run one higher.

    ``configured`` is the settings' node id. It may differ from the stored one only while ``holds_work(old id)``
    finds nothing (no container and no undelivered result of it), or with ``adopt``; else IdentityError.
    StateError when the folder cannot be written.
    """
    here = machine or this_machine()
    path = state_dir / FILE
    make_state_dir(state_dir)
    stored = _read(path)
    decided = decide(stored, configured, here, holds_work, adopt)
    write_durably(path, decided)
    known = stored is not None and "instance_id" in stored
    copied = known and decided["instance_id"] != (stored or {})["instance_id"]
    booted = known and here.boot_id is not None and (stored or {}).get("boot_id") not in (None, here.boot_id)
    return Identity(path, decided, here, copied=copied, booted=booted)


def decide(
    stored: Optional[dict[str, Any]],
    configured: Optional[str],
    machine: Machine,
    holds_work: Callable[[str], Optional[str]],
    adopt: bool,
) -> dict[str, Any]:
    """What the identity file holds from now on; pure but for the new UUID. IdentityError as above.

    ``stored`` may hold a node id alone: the rest was lost.
    """
    old = stored or {}
    node_id = old.get("node_id")
    defaulted = bool(old.get("defaulted", False))
    former = [name for name in old.get("former_node_ids", ()) if name != configured]
    if configured is not None:
        if node_id is not None and node_id != configured:
            work = holds_work(node_id)
            if work is not None and not adopt:
                raise IdentityError(
                    f"node_id: the settings say {configured}, this state folder belongs to {node_id}, and {work}. Let "
                    f"that end, set node_id back to {node_id}, or start once with --adopt-node-id to give it up"
                )
            if work is not None:
                former.append(node_id)
        node_id, defaulted = configured, False
    elif node_id is None:
        node_id, defaulted = node_id_from_hostname(machine.hostname), True

    known, fingerprint = "instance_id" in old, old.get("fingerprint")
    copied = known and is_another_machines(old, machine)
    if copied:
        log.warning("the state folder comes from another machine: this agent is a new instance")
    if not known or copied:
        instance_id, run, fingerprint = str(uuid.uuid4()), 1, machine.fingerprint
    else:
        instance_id, run = old["instance_id"], old["run"] + 1
    parts = list(machine.parts) if copied else [a or b for a, b in zip(machine.parts, old.get("parts") or (None, None))]
    return {
        "node_id": node_id,
        "defaulted": defaulted,
        "instance_id": instance_id,
        "run": run,
        # It stays when a part of it can be read only now: the server knows this machine by it.
        "fingerprint": fingerprint or machine.fingerprint,
        "parts": parts,
        "boot_id": machine.boot_id,
        "former_node_ids": former,
    }


def spare_node_id(hostname: str) -> str:
    """``<hostname>-<6 hex>``, within a node id's length; ``node-<6 hex>`` where the hostname leaves nothing."""
    spare = secrets.token_hex(3)
    stem = node_id_from_hostname(hostname)[:56].rstrip("-")
    named = any(letter.isascii() and letter.isalnum() for letter in hostname.lower())
    return f"{stem if named else 'node'}-{spare}"


def _remembered(state_dir: Path) -> Optional[dict[str, Any]]:
    """The node id that the agent of this folder said last of itself."""
    node_id = (read_status(state_dir / STATUS_FILE) or {}).get("node_id")
    return {"node_id": node_id} if isinstance(node_id, str) and is_node_id(node_id) else None


def _read(path: Path) -> Optional[dict[str, Any]]:
    """The stored identity, None where there is none. A torn file is set aside: only the node id is known then, if
    the agent has ever said it of itself."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(unwritable(path, error)) from None
    except ValueError:
        data = None
    if (
        isinstance(data, dict)
        and isinstance(data.get("node_id"), str)
        and is_node_id(data["node_id"])
        and isinstance(data.get("instance_id"), str)
        and isinstance(data.get("run"), int)
    ):
        return data
    aside = path.with_name(f"{path.name}.torn")
    try:
        path.replace(aside)
    except OSError as error:
        raise StateError(unwritable(path, error)) from None
    log.warning("%s cannot be read as an identity; it is now %s, and this agent is a new instance", path, aside)
    return _remembered(path.parent)
