"""The real `ansible-playbook` against lab nodes: an inventory of theirs, and what a run did, as data.

fleet = Fleet(plane, lab.nodes, tmp_path, fleet_builds_dir=str(builds.first))
played = fleet.play("deploy.yml", "--check", "--diff", check=False, extra={"fleet_wave": [1]})
played = fleet.role("agent", "look", hosts="hf-node-2")
assert played.changed == {} and played.outcomes["hf-node-2"]["result"] == "unchanged"
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import psutil
import yaml

from tests.lab import LabError, Node, places, ssh
from tests.lab.control_plane import ControlPlane

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOKS = ROOT / "playbooks"
ANSIBLE_PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
OUTCOME = "Say what came of it"
"""The task of a role that leaves ``agent_outcome``."""


@dataclass(frozen=True)
class Played:
    """A run that has ended. ``stats``: host -> {ok, changed, failures, unreachable, skipped, rescued, ignored}.

    ``events``: in their order what tests/e2e/roles/callback/hf_events.py writes down.
    """

    rc: int
    stdout: str
    stderr: str
    seconds: float
    stats: dict[str, dict[str, int]]
    events: list[dict[str, Any]]

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def results(self, task: str = "", host: str = "", status: str = "") -> list[dict[str, Any]]:
        """Results of tasks with ``task`` in their name ("role : name"), on that host, that ended so."""
        return [
            one
            for one in self.events
            if one["event"] == "result"
            and task in one["task"]
            and host in ("", one["host"])
            and status in ("", one["status"])
        ]

    @property
    def changed(self) -> dict[str, list[str]]:
        """Host -> the names of the tasks that changed something there; hosts without any are left out."""
        found: dict[str, list[str]] = {}
        for one in self.results(status="ok"):
            if one["changed"]:
                found.setdefault(one["host"], []).append(one["task"])
        return found

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Host -> the last ``agent_outcome`` that the roles said."""
        said = [one for one in self.results(OUTCOME, status="ok") if "ansible_facts" in one["said"]]
        return {one["host"]: one["said"]["ansible_facts"]["agent_outcome"] for one in said}

    @property
    def failures(self) -> dict[str, str]:
        """Host -> what its last failed task said."""
        return {one["host"]: str(one["said"].get("msg", one["said"])) for one in self.results(status="failed")}


def _end(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


class Run:
    """An `ansible-playbook` that was started; ``wait`` gives what it did."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], folder: Path) -> None:
        self.words = list(words)
        self._began = time.monotonic()
        self._events = folder / f"events-{time.monotonic_ns()}.jsonl"
        self._events.touch(0o600)
        self._out, self._err = self._events.with_suffix(".out"), self._events.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                self.words,
                cwd=ROOT,
                env={**environ, "HF_EVENTS": str(self._events)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def events(self) -> list[dict[str, Any]]:
        """What was written down until now."""
        lines = self._events.read_text().split("\n")[:-1]  # the last is empty, or not whole yet
        return [json.loads(line) for line in lines]

    def reached(self, task: str) -> bool:
        """Whether a task with this in its name has begun."""
        return any(one["event"] == "task" and task in one["task"] for one in self.events())

    def interrupt(self) -> None:
        """What Ctrl-C does: SIGINT to all of the run's processes."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """The controller is gone between two instructions; what runs on the hosts goes on. Ansible's workers lead
        sessions of their own and would wait for ever: they go when this program ends."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for worker in psutil.Process(self.process.pid).children(recursive=True):
                atexit.register(_end, worker)
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def wait(self, timeout: float = 600) -> Played:
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
            said = self._out.read_text(errors="replace")[-4000:]
            raise LabError(f"no end after {timeout:g} s: {' '.join(self.words)}\n{said}") from None
        events = self.events()
        return Played(
            self.process.returncode,
            self._out.read_text(errors="replace"),
            self._err.read_text(errors="replace"),
            time.monotonic() - self._began,
            next((one["hosts"] for one in events if one["event"] == "stats"), {}),
            events,
        )


class Fleet:
    """An inventory of ``nodes`` in ``folder``, and runs against it. ``variables`` are those of the whole fleet.

    ``host_vars``: node's name -> more variables of that host. ``groups``: further groups, name -> names of hosts
    ("control_plane" is empty unless it is given here: then it is somebody else's and only its HTTP is used).
    All of it is written anew before each run, so a test may change the attributes in between.
    """

    def __init__(
        self,
        plane: Optional[ControlPlane],
        nodes: Sequence[Node],
        folder: Path,
        *,
        host_vars: Optional[Mapping[str, Mapping[str, Any]]] = None,
        groups: Optional[Mapping[str, Sequence[str]]] = None,
        user: str = "root",
        **variables: Any,
    ) -> None:
        self.plane, self.nodes, self.folder, self.user = plane, list(nodes), folder, user
        self.host_vars = {name: dict(said) for name, said in (host_vars or {}).items()}
        self.groups = {name: list(hosts) for name, hosts in (groups or {}).items()}
        self.variables: dict[str, Any] = variables
        if plane is not None:
            self.variables = {
                "fleet_server_url": plane.url,
                "fleet_api_key_file": str(plane.key_file),
                "fleet_token_file": str(plane.token_file),
                **variables,
            }

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory.yml"

    def write(self) -> Path:
        """The inventory as it stands now."""
        hosts: dict[str, dict[str, Any]] = {
            node.name: {"ansible_host": node.address, **self.host_vars.get(node.name, {})} for node in self.nodes
        }
        extra = {name: said for name, said in self.host_vars.items() if name not in hosts}
        connection = {
            "ansible_user": self.user,
            "ansible_ssh_private_key_file": str(ssh.key()),
            "ansible_ssh_common_args": " ".join(ssh.OPTIONS),
        }
        groups = {"nodes": {"hosts": hosts}, "control_plane": {"hosts": {}}}
        for name, members in self.groups.items():
            groups[name] = {"hosts": {member: extra.get(member, {}) for member in members}}
        whole = {"all": {"vars": {**connection, **self.variables}, "children": groups}}
        self.folder.mkdir(parents=True, exist_ok=True)
        places.write_atomically(self.inventory, yaml.safe_dump(whole, sort_keys=False).encode(), 0o600)
        return self.inventory

    def environ(self) -> dict[str, str]:
        """Nothing of this user's own Ansible; its results written down."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        sockets = places.make_folder(places.state() / "ssh", 0o700)
        return {
            **inherited,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.folder / "ansible-home"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets),  # a socket's path must be short
            "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).parent / "callback"),
            "ANSIBLE_CALLBACKS_ENABLED": "hf_events",
            "ANSIBLE_NOCOLOR": "1",
        }

    def start(self, playbook: str | Path, *words: str, extra: Optional[Mapping[str, Any]] = None) -> Run:
        """Begin a run of a playbook (a name in playbooks/, or a path). ``extra`` wins over every other variable."""
        command = [str(ANSIBLE_PLAYBOOK), "-i", str(self.write()), str(PLAYBOOKS / playbook), *words]
        if extra:
            file = self.folder / "extra.json"
            places.write_atomically(file, json.dumps(dict(extra)).encode(), 0o600)
            command += ["-e", f"@{file}"]
        return Run(command, self.environ(), self.folder)

    def play(
        self,
        playbook: str | Path,
        *words: str,
        check: bool = True,
        extra: Optional[Mapping[str, Any]] = None,
        timeout: float = 600,
    ) -> Played:
        """Run a playbook to its end; ``check``: another exit code than 0 is an error that shows the output."""
        played = self.start(playbook, *words, extra=extra).wait(timeout)
        if check and played.rc != 0:
            raise LabError(f"{playbook} ended with {played.rc}, wanted 0:\n{played.output[-8000:]}")
        return played

    def role(
        self,
        role: str,
        entry: str = "main",
        *words: str,
        hosts: str = "nodes",
        vars: Optional[Mapping[str, Any]] = None,
        check: bool = True,
        timeout: float = 600,
    ) -> Played:
        """Run one entry point of one role."""
        task = {"name": f"{role} {entry}", "ansible.builtin.import_role": {"name": role, "tasks_from": entry}}
        play = {"name": f"{role} {entry}", "hosts": hosts, "gather_facts": False, "tasks": [task]}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{role}-{entry}.yml"
        path.write_text(yaml.safe_dump([play], sort_keys=False))
        return self.play(path, *words, check=check, extra=vars, timeout=timeout)
