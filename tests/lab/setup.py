"""Creating and removing a node's container."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.lab import images, places, ssh
from tests.lab.cards import install
from tests.lab.cards.state import default_state
from tests.lab.engine import docker
from tests.lab.node import Node
from tests.lab.process import run

# Capability numbers of the kernel in their order; the engine 20.10 knows no later ones.
_CAPABILITIES = (  # noqa: SIM905 (one word a line would read worse)
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT "
    "SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE "
    "AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ"
).split()
# A node must not be able to set the machine's clock or load modules into its kernel.
_NEVER = {"SYS_TIME", "SYS_MODULE", "SYS_BOOT"}


def capabilities() -> list[str]:
    """Those of this machine's bounding set that a node gets: `--privileged` fails where one is missing."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            held = int(line.split()[1], 16)
            return [n for bit, n in enumerate(_CAPABILITIES) if held >> bit & 1 and n not in _NEVER]
    return []


def create(node: Node, image: str, cards: int) -> None:
    """Make the container, put the node's own files into it, start it; it boots on its own."""
    folder = places.make_folder(node.cards.path.parent)
    node.cards.write(default_state(node.name, cards))
    words = ["create", f"--name={node.name}", f"--hostname={node.name}"]
    files = images.layer(_files(cards))
    words += [f"--label={places.LABEL}=node", f"--label={places.LABEL}.cards={cards}"]
    words += [f"--label={places.LABEL}.recipe={_recipe(image, files)}"]
    words += [f"--network={places.NETWORK}", f"--ip={node.address}"]
    words += ["--stop-signal=SIGRTMIN+3", "--pids-limit=-1"]
    words += ["--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"]
    words += [f"--cap-add={name}" for name in capabilities()]
    words += _cgroup_options()
    words += ["--tmpfs=/run:mode=0755", "--tmpfs=/run/lock", "--tmpfs=/tmp:exec,mode=1777"]
    words += [f"--volume={node.name}-docker:/var/lib/docker", f"--volume={folder}:{places.CARDS_FOLDER}"]
    docker("volume", "create", f"--label={places.LABEL}=volume", f"{node.name}-docker")
    docker(*words, image)
    docker("cp", "-", f"{node.name}:/", input=files)
    docker("start", node.name)


def remove(node: Node) -> None:
    """The container, its engine's data and its card state; nothing there is fine."""
    run(["docker", "rm", "--force", "--volumes", node.name], check=False)
    run(["docker", "volume", "rm", "--force", f"{node.name}-docker"], check=False)
    shutil.rmtree(node.cards.path.parent, ignore_errors=True)


def existing() -> list[Node]:
    """Nodes that have a container, running or not, by number."""
    names = docker("ps", "-a", "--filter", f"label={places.LABEL}=node", "--format", "{{.Names}}").split()
    return [Node(index) for index in sorted(places.node_index(name) for name in names)]


def card_count(node: Node) -> int:
    """How many cards the node was made with."""
    return int(_label(node, "cards") or 0)


def is_current(node: Node, image: str) -> bool:
    """Made from this image, library, tool and runtime, and not from those of an older checkout."""
    return _label(node, "recipe") == _recipe(image, images.layer(_files(card_count(node))))


def _label(node: Node, name: str) -> str:
    return docker("inspect", "-f", f'{{{{index .Config.Labels "{places.LABEL}.{name}"}}}}', node.name)


def _recipe(image: str, files: bytes) -> str:
    return images.digest(image.encode() + files)[7:19]


def _cgroup_options() -> list[str]:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return ["--cgroupns=private"]
    return ["--cgroupns=host", "--volume=/sys/fs/cgroup:/sys/fs/cgroup"]


def _files(cards: int) -> dict[str, images.Content]:
    settings: dict[str, object] = {"insecure-registries": [places.REGISTRY], "storage-driver": "overlay2"}
    public = ssh.ensure().encode()
    files: dict[str, images.Content] = {
        "root/.ssh/authorized_keys": (public, 0o600),
        "etc/ssh/authorized_keys.d/ops": public,
    }
    if cards:
        files.update(install.files())
        settings["runtimes"] = {"nvidia": {"path": f"/{install.RUNTIME}"}}
    files["etc/docker/daemon.json"] = json.dumps(settings, indent=2).encode()
    return files
