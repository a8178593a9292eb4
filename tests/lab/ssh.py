"""The lab's SSH key, made once in the cache folder; every node takes it for ``root`` and ``ops``."""

from __future__ import annotations

from pathlib import Path

from tests.lab import places
from tests.lab.process import run

# Nodes come and go with other host keys, and the network ends at this machine.
OPTIONS = (  # noqa: SIM905 (one word a line would read worse)
    "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes "
    "-o ConnectTimeout=10"
).split()


def key() -> Path:
    return places.cache() / "ssh" / "id_ed25519"


def ensure() -> str:
    """The public key, made with its private half when missing."""
    if not key().exists():
        places.make_folder(key().parent, 0o700)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hf-lab", "-f", key()])
    return key().with_suffix(".pub").read_text()
