"""Names, addresses and folders of the lab; the fixed ones are the contract with tests from outside."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

NETWORK = "hf-lab"
BRIDGE = "hf-lab"
SUBNET = "198.18.0.0/24"
HOST_ADDRESS = "198.18.0.1"
NODE_PREFIX = "hf-node-"
FIRST_NODE = 11  # hf-node-1 is 198.18.0.11
MAX_NODES = 200
REGISTRY = f"{HOST_ADDRESS}:5000"
REGISTRY_USER = "lab"
CARDS_FOLDER = "/var/lib/hf-lab"  # on each node
LABEL = "heterofleet.lab"  # on every container, network and volume of ours


def cache() -> Path:
    """The one folder that outlives ``down``: node image, keys, logs, compiled library."""
    return Path(os.environ.get("HF_LAB_CACHE") or "/var/cache/hf-lab")


def state() -> Path:
    """What belongs to the lab that is up now (card states, registry storage, pid files); ``down`` removes it."""
    return cache() / "run"


def logs() -> Path:
    return cache() / "log"


def share() -> Optional[set[int]]:
    """The numbers of the nodes that this user works with (``HF_LAB_NODES``); None: all."""
    said = os.environ.get("HF_LAB_NODES", "")
    return {int(number) for number in said.split(",")} if said else None


def port(offset: int = 0) -> int:
    """A port for a control plane or another service of this user (``HF_LAB_PORT`` begins at 3333)."""
    return int(os.environ.get("HF_LAB_PORT") or 3333) + offset


def node_name(index: int) -> str:
    return f"{NODE_PREFIX}{index}"


def node_index(name: str) -> int:
    return int(name.removeprefix(NODE_PREFIX))


def node_address(index: int) -> str:
    if not 1 <= index <= MAX_NODES:
        raise ValueError(f"node {index}: the lab has addresses for 1 to {MAX_NODES}")
    return f"198.18.0.{FIRST_NODE + index - 1}"


def make_folder(path: Path, mode: int = 0o755) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    return path


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Whole or not at all, never readable by more than ``mode`` says, not even for a moment."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
    beside.replace(path)


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """One ``up``, ``down`` or ``purge`` at a time on this machine; others wait."""
    make_folder(cache())
    with (cache() / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
