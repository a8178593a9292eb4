"""Who this agent is: node id, instance and run, kept in the state folder.

The instance belongs to one machine: a state folder that was copied to another (other fingerprint) gets a new
instance. The run grows at every start, so that the server can order beats of one instance.
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
from runtime.protocol.names import is_node_id, node_id_from_hostname

log = logging.getLogger(__name__)

FILE = "identity.json"
MACHINE_ID = Path("/etc/machine-id")
PRODUCT_UUID = Path("/sys/class/dmi/id/product_uuid")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class IdentityError(Exception):
    """The identity cannot be taken: the settings contradict what the state folder holds."""


@dataclass(frozen=True)
class Machine:
    """What identifies the machine: ``fingerprint`` is machine-id and DMI product UUID together, hashed (None
    when neither can be read); MAC addresses do not count, they change with the network."""

    hostname: str
    fingerprint: Optional[str]
    boot_id: Optional[str]


def this_machine() -> Machine:
    parts = [_line(MACHINE_ID), _line(PRODUCT_UUID)]
    known = any(parts)
    text = "\n".join(part or "" for part in parts)
    fingerprint = hashlib.sha256(text.encode()).hexdigest() if known else None
    return Machine(socket.gethostname(), fingerprint, _line(BOOT_ID))


def _line(path: Path) -> Optional[str]:
    try:
        return path.read_text("utf-8", "replace").strip().lower() or None
    except OSError:
        return None


class Identity:
    """Node id, instance and run of this agent; changes are on disk before they show.

    ``defaulted``: the node id came from the hostname, so it may be given up for a free one.
    """

    def __init__(self, path: Path, stored: dict[str, Any], machine: Machine) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stored = stored
        self.hostname = machine.hostname
        self.fingerprint = machine.fingerprint
        self.boot_id = machine.boot_id

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

    def take_run(self, run: int) -> None:
        """The server knows a higher run than ours: go on from ``run``."""
        self._change(run=run)

    def new_instance(self) -> None:
        """Another machine answers to this instance: be a new one."""
        self._change(instance_id=str(uuid.uuid4()), run=1)

    def take_spare_node_id(self) -> str:
        """The defaulted id belongs to somebody else: take ``<hostname>-<6 hex>``."""
        stem = node_id_from_hostname(self.hostname)[:56].rstrip("-")
        self._change(node_id=f"{stem}-{secrets.token_hex(3)}")
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
    holds_claims: Callable[[], bool] = lambda: False,
    adopt: bool = False,
    machine: Optional[Machine] = None,
) -> Identity:
    """The identity for this start, stored with its run one higher.

    ``configured`` is the settings' node id. It may differ from the stored one only while ``holds_claims()`` is
    false (no container and no undelivered result of the old id), or with ``adopt``; else IdentityError.
    StateError when the folder cannot be written.
    """
    here = machine or this_machine()
    path = state_dir / FILE
    make_state_dir(state_dir)
    stored = _read(path)
    decided = decide(stored, configured, here, holds_claims, adopt)
    write_durably(path, decided)
    return Identity(path, decided, here)


def decide(
    stored: Optional[dict[str, Any]],
    configured: Optional[str],
    machine: Machine,
    holds_claims: Callable[[], bool],
    adopt: bool,
) -> dict[str, Any]:
    """What the identity file holds from now on; pure but for the new UUID. IdentityError as above."""
    old = stored or {}
    node_id = old.get("node_id")
    defaulted = bool(old.get("defaulted", False))
    if configured is not None:
        if node_id is not None and node_id != configured and not adopt and holds_claims():
            raise IdentityError(
                f"node_id: the settings say {configured}, this state folder belongs to {node_id}, and containers or "
                f"undelivered results of {node_id} are still here. Let them end, set node_id back to {node_id}, or "
                "start once with --adopt-node-id to give them up"
            )
        node_id, defaulted = configured, False
    elif node_id is None:
        node_id, defaulted = node_id_from_hostname(machine.hostname), True

    copied = (
        stored is not None
        and machine.fingerprint is not None
        and old.get("fingerprint") is not None
        and old["fingerprint"] != machine.fingerprint
    )
    if copied:
        log.warning("the state folder comes from another machine: this agent is a new instance")
    if stored is None or copied:
        instance_id, run = str(uuid.uuid4()), 1
    else:
        instance_id, run = old["instance_id"], old["run"] + 1
    return {
        "node_id": node_id,
        "defaulted": defaulted,
        "instance_id": instance_id,
        "run": run,
        "fingerprint": machine.fingerprint or old.get("fingerprint"),
    }


def _read(path: Path) -> Optional[dict[str, Any]]:
    """The stored identity; a torn file is set aside and counts as none."""
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
    return None
