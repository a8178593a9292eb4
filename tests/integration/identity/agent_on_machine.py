"""``heterofleet-agent`` on a machine that is a folder of files: ``python -m ... FOLDER run --config FILE``.

The folder holds what tells one machine from another (machine-id, product_uuid, boot_id, hostname, booted_at); the
agent is the real one, in a process of its own. It asks a server that refused it again after a second, not a minute.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

from runtime.agent.hardware import host
from runtime.agent.link import identity
from runtime.agent.link.heartbeat import Heartbeats
from runtime.agent.main import main
from runtime.agent.tasks import boot

REFUSED_S = 1.0


def on_machine(folder: Path) -> None:
    """Let this process see ``folder`` as its machine."""
    identity.MACHINE_ID = folder / "machine-id"
    identity.PRODUCT_UUID = folder / "product_uuid"
    identity.BOOT_ID = boot._BOOT_ID = folder / "boot_id"
    socket.gethostname = lambda: os.fsdecode((folder / "hostname").read_bytes())
    host.uptime_s = lambda: int(time.time() - float((folder / "booted_at").read_text()))
    Heartbeats.__init__.__kwdefaults__["refused_s"] = REFUSED_S  # type: ignore[misc]


if __name__ == "__main__":
    on_machine(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
