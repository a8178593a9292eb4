"""A lab node without an agent beside a control plane that has builds for it; all that a script could change there."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Optional

from tests.lab import Node
from tests.lab.control_plane import ControlPlane

UNIT = "heterofleet-agent.service"
SCRIPT, KEY = "/root/install-agent.sh", "/root/key"

# For programs that look at a node: kind with mode, owners, size and contents or link target of a path.
DESCRIBED = """
import hashlib, os, stat
def described(path):
    info = os.lstat(path)
    what = ""
    if stat.S_ISLNK(info.st_mode):
        what = os.readlink(path)
    elif stat.S_ISREG(info.st_mode):
        with open(path, "rb") as file:
            what = str(info.st_size) + " " + hashlib.sha256(file.read()).hexdigest()
    return [oct(info.st_mode), str(info.st_uid), str(info.st_gid), what]
"""

# Every path with kind, mode, owners, size, link target and contents, then what systemd knows of us. Left out is
# only what lives by itself on any host: the kernel's trees, the engine's data, the journal, sockets of sessions.
_SNAPSHOT = (
    DESCRIBED
    + """
import subprocess, sys
times = sys.argv[1] == "times"
skip = {"/proc", "/sys", "/dev", "/var/log", "/var/lib/docker", "/var/lib/containerd", "/var/lib/hf-lab",
        "/var/lib/systemd", "/run/docker", "/run/containerd", "/run/log", "/run/udev", "/run/user", "/run/lock",
        "/run/systemd/journal", "/run/systemd/units", "/run/systemd/sessions", "/run/systemd/users",
        "/run/systemd/io.systemd.Login"}
def known(path):
    words = [path, *described(path)]
    # The time of the last change cannot be set by anybody: equal means that not even a passing file was there.
    words += [str(os.lstat(path).st_ctime_ns)] if times and not path.startswith(("/run", "/tmp")) else []
    print(" ".join(words).encode(errors="surrogateescape").decode(errors="replace"))
for folder, folders, files in os.walk("/"):
    folders[:] = sorted(f for f in folders if os.path.join(folder, f) not in skip)
    for name in sorted(folders + files):
        path = os.path.join(folder, name)
        if path not in skip:
            known(path)
for words in (["list-unit-files"], ["list-units", "--all"]):
    text = subprocess.run(["systemctl", "--plain", "--no-legend", "--no-pager", *words], capture_output=True).stdout
    for line in text.decode().splitlines():
        name = line.split()[0]
        # Docker's own mounts and slices of sessions come and go.
        if not name.endswith((".mount", ".device", ".scope", ".slice")):
            print("systemd", *(words[:1] + line.split()[:2]))
"""
)


def snapshot(node: Node, *, times: bool = False) -> list[str]:
    """A line for each path and unit; ``times``: with the time of the last change, outside /run and /tmp."""
    words = ["python3", "-Ic", _SNAPSHOT, "times" if times else "contents"]
    return node.run(words).stdout.splitlines()


def changed(before: list[str], after: list[str]) -> list[str]:
    """Lines of only one of the two snapshots, marked with - and +."""
    was, now = set(before), set(after)
    return [f"- {line}" for line in before if line not in now] + [f"+ {line}" for line in after if line not in was]


@dataclass(frozen=True)
class Site:
    """A node without an agent, and a control plane that has builds for it."""

    node: Node
    plane: ControlPlane

    def install(
        self, *words: str, shell: str = "sh", timeout: float = 150, env: Optional[dict[str, str]] = None
    ) -> subprocess.CompletedProcess[str]:
        return self.node.run([shell, SCRIPT, *words], check=False, timeout=timeout, env=env)

    def uninstall(self, *words: str) -> subprocess.CompletedProcess[str]:
        self.node.run(["curl", "-fsSLo", "/root/uninstall-agent.sh", f"{self.plane.url}/uninstall-agent.sh"])
        return self.node.run(["sh", "/root/uninstall-agent.sh", *words], check=False)

    def property(self, name: str) -> str:
        return self.node.run(["systemctl", "show", "-p", name, "--value", UNIT]).stdout.strip()

    def status(self) -> dict:
        return json.loads(self.node.run(["heterofleet-agent", "status", "--json"], check=False).stdout)
