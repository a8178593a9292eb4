"""The real command with the real Ansible on this machine: a small project whose hosts are folders, and whose steps wait
for the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.server_core.plane import Plane, running
from tests.integration.waiting import until

PROGRAM = Path(sys.executable).with_name("heterofleet")
WAIT_S = 60.0

HOLD = "touch {{ at }}/$0.here; until test -e {{ at }}/$0.go; do sleep 0.05; done"
"""A step of a host that says that it is there, and goes on when the test lets it."""

WAVES = [
    # Ansible knows no variables of hosts before a first play.
    {"name": "Look", "hosts": "localhost", "gather_facts": False, "tasks": []},
    {
        "name": "Upgrade in waves",
        "hosts": "nodes",
        "gather_facts": False,
        "serial": "{{ hostvars[groups.nodes[0]].fleet_wave | default([1]) }}",
        "tasks": [
            {
                "name": "Begin no further host where a stop was asked for",
                "ansible.builtin.meta": "end_play",
                "when": "fleet_stop_file is ansible.builtin.exists",
            },
            {"name": "Change", "ansible.builtin.import_role": {"name": "agent"}},
        ],
    },
    {
        "name": "Sum up",
        "hosts": "localhost:nodes",
        "gather_facts": False,
        "tasks": [{"name": "Say it", "ansible.builtin.debug": {"msg": "the end"}, "run_once": True}],
    },
]

AGENT = [
    {
        "name": "Change the host",
        "block": [
            {
                "name": "Do it",
                "ansible.builtin.command": {
                    "argv": ["sh", "-c", "{{ does | default('true') }}", "{{ inventory_hostname }}"]
                },
                "changed_when": True,
            },
            {
                "name": "Say what came of it",
                "ansible.builtin.set_fact": {
                    "agent_outcome": {"result": "changed", "from": "1.0", "to": "1.1", "reason": ""}
                },
            },
        ],
        "rescue": [
            {
                "name": "Say what came of it",
                "ansible.builtin.set_fact": {
                    "agent_outcome": {
                        "result": "restored",
                        "from": "1.0",
                        "to": "1.1",
                        "reason": "{{ ansible_failed_result.stderr }}",
                    }
                },
            },
            {"name": "Fail", "ansible.builtin.fail": {"msg": "{{ agent_outcome.reason }}"}},
        ],
    }
]


@dataclass
class Run:
    """The command while it runs; all it writes goes to files."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def said(self) -> str:
        return self.err.read_text(errors="replace")

    def until_said(self, text: str) -> None:
        until(f"{text!r} among what the command says", lambda: text in self.said or self._over(), WAIT_S)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def end(self, timeout: float = 120) -> int:
        return self.process.wait(timeout)

    @property
    def body(self) -> Any:
        return json.loads(self.out.read_text())

    def _over(self) -> bool:
        assert self.process.poll() is None, f"it has ended: {self.said}"
        return False


@dataclass
class Fleet:
    """A project, an inventory of hosts that are this machine, and a home folder of the command's own."""

    folder: Path
    hosts: dict[str, dict[str, Any]] = field(default_factory=lambda: {"a": {}, "b": {}, "c": {}})
    variables: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def at(self) -> Path:
        return self.folder / "at"

    def write(self, plays: Any = WAVES, name: str = "upgrade") -> None:
        project = self.folder / "project"
        for place in ("playbooks", "templates", "roles/agent/tasks"):
            (project / place).mkdir(parents=True, exist_ok=True)
        (project / "playbooks" / f"{name}.yml").write_text(plays if isinstance(plays, str) else yaml.safe_dump(plays))
        (project / "roles/agent/tasks/main.yml").write_text(yaml.safe_dump(AGENT))
        for place in (self.home, self.at):
            place.mkdir(exist_ok=True)
        said = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "at": str(self.at)}
        groups = {"nodes": {"hosts": self.hosts}, "control_plane": {"hosts": {}}}
        inventory = {"all": {"vars": {**said, **self.variables}, "children": groups}}
        (self.folder / "inventory.yml").write_text(yaml.safe_dump(inventory))

    def start(self, *words: str, action: str = "upgrade", stdin: Any = subprocess.DEVNULL, stderr: Any = None) -> Run:
        out, err = self.folder / "out", self.folder / "err"
        words = ("fleet", action, "-i", "inventory.yml", "--project", "project", *words)
        base = {"PATH": os.environ["PATH"], "HOME": str(self.home), "ANSIBLE_HOME": str(self.home / "ansible")}
        with out.open("wb") as to, err.open("wb") as errors:
            process = subprocess.Popen(
                [str(PROGRAM), *words],
                cwd=self.folder,
                env={**base, **self.environ},
                stdin=stdin,
                stdout=to,
                stderr=errors if stderr is None else stderr,
            )
        return Run(process, out, err)

    def run(self, *words: str, action: str = "upgrade", **more: Any) -> Run:
        run = self.start(*words, action=action, **more)
        run.end()
        return run

    def here(self, host: str, run: Run) -> None:
        """Wait until the host is in its step."""

        def there() -> bool:
            assert run.process.poll() is None, run.said
            return (self.at / f"{host}.here").exists()

        until(f"{host} is at work", there, WAIT_S)

    def go(self, *hosts: str) -> None:
        for host in hosts:
            (self.at / f"{host}.go").touch()

    def processes(self) -> list[str]:
        """Command lines of all processes that have this fleet's home folder in their environment."""
        return [process.command for process in processes_of(self.home)]


@dataclass(frozen=True)
class Process:
    pid: int
    command: str
    environ: Mapping[str, str]


def processes_of(home: Path) -> list[Process]:
    """Everything that runs with this home folder, whoever is its parent by now."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = dict(
                word.split("=", 1)
                for word in (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                if "=" in word
            )
            command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
        except OSError:
            continue
        if environ.get("HOME") == str(home):
            found.append(Process(int(entry.name), command, environ))
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    for process in processes_of(made.home):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    """A control plane that is told of runs."""
    state = tmp_path / "state"
    state.mkdir()
    with running(state) as made:
        yield made


def told(plane: Plane) -> list[tuple[str, str, str]]:
    """(code, actor, detail) of what the control plane was told of runs."""
    return [
        (event["code"], event["actor"], event["detail"])
        for event in plane.events("operator_action")
        if event["code"].startswith("fleet_run")
    ]
