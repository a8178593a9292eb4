"""One node: a systemd host in a container of the machine's engine, with an engine of its own."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Optional, Union

from tests.lab import network, places, ssh
from tests.lab.cards.state import Cards
from tests.lab.process import LabError, run, wait_for

if TYPE_CHECKING:
    import docker as docker_py

Completed = subprocess.CompletedProcess[str]


class Node:
    """A handle by name; it holds nothing that a restart of the node or of the lab makes wrong."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = places.node_name(index)
        self.address = places.node_address(index)

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.address}>"

    # Programs and files on the node

    def run(
        self,
        argv: Sequence[str],
        input: Union[str, bytes, None] = None,
        timeout: Optional[float] = 60,
        check: bool = True,
        user: str = "root",
        env: Optional[dict[str, str]] = None,
    ) -> Completed:
        """Run a program on the node by `docker exec`. After a timeout it may still run there."""
        words = ["docker", "exec", "-i", "--user", user]
        for name, value in (env or {}).items():
            words += ["--env", f"{name}={value}"]
        return run([*words, self.name, *argv], input=input, timeout=timeout, check=check)

    def sh(self, script: str, **options: object) -> str:
        """Run a shell script on the node; returns its standard output, stripped."""
        return self.run(["sh", "-euc", script], **options).stdout.strip()  # type: ignore[arg-type]

    def ssh(
        self,
        argv: Sequence[str],
        user: str = "root",
        input: Union[str, bytes, None] = None,
        timeout: Optional[float] = 60,
        check: bool = True,
    ) -> Completed:
        """Run a program over real SSH with the lab's key, as ``root`` or as ``ops`` (who may sudo)."""
        return run(
            ["ssh", *ssh.OPTIONS, "-i", ssh.key(), f"{user}@{self.address}", shlex.join(argv)],
            input=input,
            timeout=timeout,
            check=check,
        )

    def docker(self, *args: str, input: Optional[bytes] = None, timeout: float = 120, check: bool = True) -> Completed:
        """The docker client on the node, against the node's own engine."""
        return self.run(["docker", *args], input=input, timeout=timeout, check=check)

    def docker_client(self, timeout: float = 60) -> docker_py.DockerClient:
        """docker-py on the node's own engine, through the node's socket as seen from the machine.

        The path goes by the node's main process: make a new client after a power cut.
        """
        import docker as docker_py

        return docker_py.DockerClient(base_url=f"unix://{self.docker_socket}", timeout=int(timeout))

    @property
    def docker_socket(self) -> str:
        return f"/proc/{self.pid}/root/run/docker.sock"

    def put(self, path: str, data: Union[bytes, str], mode: int = 0o644) -> None:
        """Write a file on the node: whole or not at all, its folder made when missing."""
        content = data.encode() if isinstance(data, str) else data
        target, beside = shlex.quote(path), shlex.quote(f"{path}.hf-lab-new")
        self.sh(
            f'mkdir -p "$(dirname {target})"; umask 077; cat > {beside}; '
            f"chmod {mode:o} {beside}; mv -T {beside} {target}",
            input=content,
        )

    def get(self, path: str) -> bytes:
        """A file's bytes."""
        done = subprocess.run(["docker", "exec", self.name, "cat", path], capture_output=True, timeout=60)
        if done.returncode != 0:
            raise LabError(f"{self.name}: cannot read {path}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    @cached_property
    def cards(self) -> Cards:
        """The node's card state; works while the node is off, too."""
        return Cards(self.name)

    # The node as a machine

    @property
    def pid(self) -> int:
        """The node's process 1 as the machine numbers it."""
        pid = int(self._inspect("{{.State.Pid}}"))
        if not pid:
            raise LabError(f"{self.name} is powered off: power_on() first")
        return pid

    @property
    def running(self) -> bool:
        done = run(["docker", "inspect", "-f", "{{.State.Running}}", self.name], check=False)
        return done.stdout.strip() == "true"

    @property
    def connected(self) -> bool:
        """On the lab's network (a network cut by ``drop`` still counts as connected)."""
        return places.NETWORK in json.loads(self._inspect("{{json .NetworkSettings.Networks}}"))

    def wait_until_booted(self, timeout: float = 60) -> None:
        """systemd says ``running``: every unit is up, the node's own engine included."""

        def state() -> object:
            done = self.run(["systemctl", "is-system-running", "--wait"], check=False, timeout=timeout)
            said = done.stdout.strip() or done.stderr.strip()
            if said == "degraded":
                failed = self.run(["systemctl", "--failed", "--plain", "--no-legend"], check=False).stdout
                raise LabError(f"degraded, failed units: {failed.strip()}")
            return said == "running" or said

        wait_for(f"{self.name} has booted", state, timeout, 0.1, hint=f"See `docker logs {self.name}`.")

    def power_cut(self) -> None:
        """Everything on the node ends between two instructions. The machine's page cache survives."""
        run(["docker", "kill", self.name])

    def power_on(self, wait: bool = True) -> None:
        run(["docker", "start", self.name])
        if wait:
            self.wait_until_booted()

    def cut_network(self, how: Literal["disconnect", "drop"] = "disconnect") -> None:
        """``disconnect`` takes the link away; ``drop`` leaves it up and swallows every packet."""
        if how == "drop":
            network.set_bridge_port(self.pid, forwarding=False)
        else:
            run(["docker", "network", "disconnect", places.NETWORK, self.name])

    def heal_network(self) -> None:
        """The network works again, with the same address, whichever way it was cut."""
        if not self.connected:
            run(["docker", "network", "connect", "--ip", self.address, places.NETWORK, self.name])
        elif self.running:
            network.set_bridge_port(self.pid, forwarding=True)

    # The node's engine

    def stop_engine(self) -> None:
        """Stop Docker and its socket: containers end, and nothing starts it again by asking."""
        self.run(["systemctl", "stop", "docker.socket", "docker.service"])

    def start_engine(self) -> None:
        self.run(["systemctl", "start", "docker.socket", "docker.service"])

    def restart_engine(self) -> None:
        self.run(["systemctl", "restart", "docker.service"])

    def freeze_engine(self) -> None:
        """The engine takes connections and never answers, until :meth:`thaw_engine`."""
        self.run(["systemctl", "kill", "--kill-who=main", "--signal=SIGSTOP", "docker.service"])

    def thaw_engine(self) -> None:
        self.run(["systemctl", "kill", "--kill-who=main", "--signal=SIGCONT", "docker.service"])

    def load_image(self, archive: bytes) -> None:
        """`docker load` of an archive (see ``images.Image.archive``) on the node."""
        self.docker("load", input=archive)

    def _inspect(self, form: str) -> str:
        done = run(["docker", "inspect", "-f", form, self.name], check=False)
        if done.returncode != 0:
            raise LabError(f"there is no {self.name}: `python -m tests.lab up` brings it up")
        return done.stdout.strip()
