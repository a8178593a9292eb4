"""Machines that are folders, with the agent as a process; and servers on one database, asked by their API."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from runtime.server.store import tables
from tests.integration.task_calls import TaskCalls
from tests.integration.waiting import until
from tests.lab import places
from tests.lab.control_plane import ControlPlane

LOST_AFTER_S = 3
SETTINGS: dict[str, Any] = {
    "heartbeat_interval_s": 1,
    "unreachable_after_beats": 2,
    "lost_after_beats": LOST_AFTER_S,
    "start_grace_s": 1,
    "brake_min_nodes": 1000,
    "doorbell_listen": "",
}
NO_ENGINE = "unix:///nonexistent/docker.sock"


class Servers(TaskCalls):
    """``count`` processes of the control plane on one database."""

    def __init__(self, name: str, port: int, *, count: int = 1, database_url: str | None = None) -> None:
        first = ControlPlane(name, listen=f"127.0.0.1:{places.port(port)}", **SETTINGS)
        self.planes = [first]
        if database_url is not None:
            first.settings["database_url"] = database_url
        for number in range(1, count):
            shared = {"api_key_file": str(first.key_file), "secret_key_file": str(first.state_dir / "secret.key")}
            listen = f"127.0.0.1:{places.port(port + number)}"
            self.planes.append(
                ControlPlane(f"{name}-{number}", listen=listen, **SETTINGS, **shared, database_url=database_url)
            )
        for plane in self.planes:
            plane.remove()
        self._gone: list[ControlPlane] = []
        self._database_url = database_url

    @property
    def _engine(self) -> sa.Engine:
        return sa.create_engine(
            self._database_url or f"sqlite:///{self.planes[0].state_dir / 'heterofleet.db'}", poolclass=sa.NullPool
        )

    def start(self) -> None:
        for plane in self.planes:
            plane.start()

    def stop(self) -> None:
        for plane in self.planes:
            plane.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    def move(self, port: int, listen: str | None = None) -> None:
        """Settings and state of the stopped server to another host: another folder, and another port or ``listen``."""
        (old,) = self.planes
        new = ControlPlane(
            f"{old.name}-{port}",
            listen=listen or f"127.0.0.1:{places.port(port)}",
            **SETTINGS,
            api_key_file=str(self.key_file),
        )
        new.remove()
        shutil.copytree(old.folder, new.folder)
        new.settings_file.unlink()
        self.planes = [new]
        self._gone.append(old)

    def remove(self) -> None:
        for plane in (*self.planes, *self._gone):
            plane.remove()

    @property
    def key_file(self) -> Path:
        return self.planes[0].key_file

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return self.planes[0].request(method, f"/api/v1{path}", body)

    def node(self, node_id: str) -> dict[str, Any]:
        """The node as the API shows it; empty where there is none."""
        status, body = self.call("GET", f"/nodes/{node_id}")
        return dict(body) if status == 200 else {}

    def names(self, prefix: str) -> list[str]:
        status, body = self.call("GET", "/nodes")
        assert status == 200, body
        return [node["id"] for node in body["nodes"] if node["id"].startswith(prefix)]

    def state(self, node_id: str, state: str) -> None:
        until(f"{node_id} is {state}", lambda: self.node(node_id).get("state") == state)

    def events(self, node_id: str) -> list[str]:
        """Kinds, or kinds and codes, of what happened to the node, oldest first."""
        status, body = self.call("GET", f"/events?node={node_id}&limit=1000")
        assert status == 200, body
        return [event["kind"] + (f":{event['code']}" if event["code"] else "") for event in body["events"]]

    def bindings(self, node_id: str) -> int:
        """How often an instance was bound to the name."""
        return sum(kind in ("node_registered", "node_replaced") for kind in self.events(node_id))

    def is_status(self, task_id: str, status: str, timeout: float = 40) -> dict[str, Any]:
        until(f"{task_id} is {status}: {self.task(task_id)}", lambda: self.task(task_id)["status"] == status, timeout)
        return self.task(task_id)

    def claim(self, task_id: str) -> str | None:
        """The instance that holds the task's claim."""
        query = sa.select(tables.tasks.c.claim_instance).where(tables.tasks.c.id == task_id)
        with self._engine.connect() as connection:
            found: str | None = connection.execute(query).scalar()
        return found

    def allocations(self, node_id: str) -> list[bool]:
        """Of each held card of the node, whether it only waits for the node's word."""
        held = tables.gpu_allocations
        with self._engine.connect() as connection:
            return list(connection.execute(sa.select(held.c.releasing).where(held.c.node_id == node_id)).scalars())


class Machine:
    """A machine, its engine, and the agent on it."""

    def __init__(
        self,
        folder: Path,
        servers: Servers,
        hostname: str | bytes,
        *,
        node_id: str | None = None,
        machine_id: str | None = "",
        product: str | None = "",
        engine: str = NO_ENGINE,
        server: int = 0,
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._servers = servers
        self._server = server
        self.engine = engine
        self._process: subprocess.Popen[bytes] | None = None
        self.name(hostname)
        self.firmware("machine-id", uuid.uuid4().hex if machine_id == "" else machine_id)
        self.firmware("product_uuid", str(uuid.uuid4()) if product == "" else product)
        self.boot()
        self.configure(node_id)

    # The machine

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def name(self, hostname: str | bytes) -> None:
        (self.folder / "hostname").write_bytes(hostname if isinstance(hostname, bytes) else hostname.encode())

    def firmware(self, what: str, value: str | None) -> None:
        """``machine-id`` or ``product_uuid`` as the machine shows it; None: it cannot be read."""
        path = self.folder / what
        path.unlink(missing_ok=True)
        if value is not None:
            path.write_text(f"{value}\n")

    def boot(self) -> None:
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.folder / "booted_at").write_text(str(time.time()))

    def configure(self, node_id: str | None) -> None:
        settings = {
            "server_url": self._servers.planes[self._server].url,
            "api_key_file": str(self._servers.key_file),
            "state_dir": str(self.state),
            "docker_host": self.engine,
            "reconcile_interval_s": 1,
            "poll_interval_s": 1,
            "safety_pull_s": 1,
            "disk_min_free_mib": 10,
            "report_total_s": 2,
            "report_backoff_max_s": 1,
            **({"node_id": node_id} if node_id else {}),
        }
        (self.folder / "agent.yaml").write_text(json.dumps(settings))
        (self.folder / "agent.yaml").chmod(0o600)
        self.configured = node_id

    def clone(self, folder: Path, *, engine: str = NO_ENGINE, server: int | None = None, state: bool = True) -> Machine:
        """A copy of the machine as it is now, with its state folder, started as a boot of its own."""
        copy = Machine(
            folder,
            self._servers,
            (self.folder / "hostname").read_bytes(),
            node_id=self.configured,
            engine=engine,
            server=self._server if server is None else server,
        )
        for what in ("machine-id", "product_uuid"):
            path = self.folder / what
            copy.firmware(what, path.read_text().strip() if path.exists() else None)
        if state:
            self.copy_state(copy)
        return copy

    def copy_state(self, other: Machine) -> None:
        """The state folder onto another machine, as ``tar`` would carry it."""
        shutil.rmtree(other.state, ignore_errors=True)
        shutil.copytree(self.state, other.state)

    def wipe(self) -> None:
        """A new image on the same machine: the state folder is gone."""
        shutil.rmtree(self.state)

    # The agent

    @property
    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tests.integration.identity.agent_on_machine", str(self.folder)]

    def start(self, *words: str) -> Machine:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "run", "--config", str(self.folder / "agent.yaml"), *words], stdout=log, stderr=log
            )
        return self

    def ends(self) -> int:
        assert self._process is not None
        return self._process.wait(30)

    def run_here(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command of the agent's, to its end."""
        config = ("--config", str(self.folder / "agent.yaml"))
        return subprocess.run(
            [*self._command, *words[:1], *config, *words[1:]], capture_output=True, text=True, timeout=60, check=False
        )

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.ends()

    def stop(self) -> None:
        self._signal(signal.SIGTERM)
        self.ends()

    def freeze(self) -> None:
        """As if cut off: it lives, and nobody hears it."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # What it says of itself

    def identity(self) -> dict[str, Any]:
        return dict(json.loads((self.state / "identity.json").read_text()))

    @property
    def node_id(self) -> str:
        return str(self.identity()["node_id"])

    @property
    def instance(self) -> str:
        return str(self.identity()["instance_id"])

    def status(self) -> dict[str, Any]:
        """What the agent that was started last says; empty before it says anything."""
        try:
            said = dict(json.loads((self.state / "status.json").read_text()))
        except (OSError, ValueError):
            return {}
        return said if self._process is not None and said.get("pid") == self._process.pid else {}

    @property
    def beat_at(self) -> str:
        return str(self.status().get("written_at"))

    def registered(self) -> Machine:
        """Until its newest beat was accepted, and it is the node's holder."""

        def look() -> bool:
            holds = bool(self.status().get("registered"))
            return holds and self._servers.node(self.node_id).get("instance_id") == self.instance

        until(f"the agent of {self.folder.name} is registered: {self.log[-2000:]}", look)
        return self

    def refused(self, code: str, *words: str) -> Machine:
        """Until the server refuses it so; the text names all of ``words``."""

        def look() -> bool:
            error = self.status().get("last_error") or {}
            return error.get("code") == code and all(word in error.get("text", "") for word in words)

        until(f"the agent of {self.folder.name} is refused with {code} {words}: {self.status()}", look)
        assert self._process is not None and self._process.poll() is None, "the refused agent stays up"
        assert not self.status()["registered"]
        return self

    def beats(self, count: int) -> None:
        """For so many more beats, accepted or not."""
        for _ in range(count):
            before = self.beat_at
            until(f"the agent of {self.folder.name} beats", lambda before=before: self.beat_at != before)
