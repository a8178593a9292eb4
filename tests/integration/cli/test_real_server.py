"""The command against the real control plane: what the scripted one promises holds there too."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.cli.conftest import PROGRAM, Cli
from tests.lab.process import wait_for
from tests.lab.simulated_node import SimulatedNode


@dataclass(frozen=True)
class Running:
    url: str
    key: str
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    key = secrets.token_urlsafe(24)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HETEROFLEET_MODE": "dev",
        "HETEROFLEET_LISTEN": f"127.0.0.1:{port}",
        "HETEROFLEET_DOORBELL_LISTEN": "",
        "HETEROFLEET_STATE_DIR": str(folder / "state"),
        "HETEROFLEET_API_KEY": key,
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(PROGRAM), "server", "run"], env=environ, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def ready() -> object:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError as error:
            return str(error)

    try:
        wait_for("the control plane is ready", ready, 60, 0.05)
        tokens = {
            role: subprocess.run(
                [str(PROGRAM), "server", "token", "create", "--name", role, "--role", role],
                env=environ,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for role in ("admin", "viewer")
        }
        yield Running(url, key, tokens)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0, (folder / "log").read_text()


@pytest.fixture
def cli(tmp_path: Path, server: Running) -> Cli:
    return Cli(tmp_path, server.url, {"HETEROFLEET_TOKEN": server.tokens["admin"]})


@pytest.fixture
def node(server: Running) -> SimulatedNode:
    node = SimulatedNode(server.url, server.key, f"node-{secrets.token_hex(3)}", cards=2)
    status, body = node.beat()
    assert status == 200, body
    return node


class Agent(threading.Thread):
    """Beats, claims the one task when it comes, writes a log, and ends it as told."""

    def __init__(self, node: SimulatedNode, task_id: str, log: bytes, **end: object) -> None:
        super().__init__()
        self._node, self._task_id, self._log, self._end = node, task_id, log, end
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.failure = error

    def _work(self) -> None:
        found: list[dict] = []

        def offered() -> object:
            self._node.beat()
            found[:] = [task for task in self._node.scheduled() if task["id"] == self._task_id]
            return bool(found)

        wait_for(f"{self._task_id} is offered", offered, 30, 0.1)
        attempt = found[0]["attempt"]
        token, (status, body) = self._node.claim(self._task_id, attempt)
        assert status == 200, body
        text = self._log.decode("utf-8", "replace")
        chunk = {"attempt": attempt, "claim_token": token, "from": 0, "to": len(self._log), "data": text, "dropped": 0}
        status, body = self._node.call("POST", f"/api/v1/tasks/{self._task_id}/logs", chunk)
        assert status == 204, body
        status, body = self._node.put(self._task_id, attempt, token, "running", **self._end)
        assert status == 200, body


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"target": "completed", "exit_code": 0, "reason": "exited"}, 0),
        ({"target": "failed", "exit_code": 3, "reason": "exited"}, 3),
        ({"target": "failed", "exit_code": 124, "reason": "timeout"}, 124),
        ({"target": "failed", "reason": "image_not_found", "error": "no such image"}, 70),
    ],
)
def test_a_followed_task_gives_its_own_exit_code(
    cli: Cli, node: SimulatedNode, end: dict[str, object], code: int
) -> None:
    task_id = f"followed-{secrets.token_hex(3)}"
    agent = Agent(node, task_id, b"first line\nsecond line\n", **end)
    agent.start()
    done = cli("tasks", "run", "--id", task_id, "--image", "app", "--gpus", "1", "--node", node.node_id, "--follow")
    agent.join(30)
    assert agent.failure is None
    assert done.returncode == code, done.stderr
    assert done.stdout == "first line\nsecond line\n"
    assert f"on {node.node_id}" in done.stderr
    assert cli("tasks", "logs", task_id, "--tail", "1").stdout == "second line\n"
    shown = json.loads(cli("tasks", "show", task_id, "-o", "json").stdout)
    assert (shown["status"], shown["exit_code"]) == (end["target"], end.get("exit_code"))


def test_output_that_is_no_text_is_followed_once(cli: Cli, node: SimulatedNode) -> None:
    """What happened: the reader asked by a name that the server does not know, got all of the log at every look,
    and cut off what it had shown by raw bytes: where bytes had been replaced, the last words came again."""
    task_id = f"latin-{secrets.token_hex(3)}"
    agent = Agent(node, task_id, b"caf\xe9 caf\xe9\nlast line\n", target="completed", exit_code=0, reason="exited")
    agent.start()
    done = cli("tasks", "run", "--id", task_id, "--image", "app", "--gpus", "1", "--node", node.node_id, "--follow")
    agent.join(30)
    assert agent.failure is None
    assert done.stdout == "caf\ufffd caf\ufffd\nlast line\n"


def test_what_is_listed(cli: Cli, node: SimulatedNode) -> None:
    assert node.node_id in cli("nodes", "list").stdout
    assert node.node_id in cli("nodes", "show", node.node_id).stdout
    assert f"GPU-{node.node_id}-1" in cli("gpus", "list").stdout
    assert "node_registered" in cli("events", "--node", node.node_id).stdout
    listed = json.loads(cli("nodes", "list", "-o", "json").stdout)
    assert node.node_id in [entry["id"] for entry in listed["nodes"]]


def test_a_cordon_and_its_end(cli: Cli, node: SimulatedNode) -> None:
    assert cli("nodes", "cordon", node.node_id, "--reason", "fan is loud").returncode == 0
    shown = cli("nodes", "show", node.node_id).stdout
    assert "cordoned" in shown
    assert "fan is loud (by admin" in shown
    assert cli("nodes", "uncordon", node.node_id).returncode == 0
    assert "cordoned" not in cli("nodes", "show", node.node_id).stdout


def test_who_may_do_what(cli: Cli, server: Running, node: SimulatedNode) -> None:
    for env, code in (
        ({"HETEROFLEET_TOKEN": "hf-no-such-token"}, "bad_token"),
        ({"HETEROFLEET_TOKEN": server.tokens["viewer"]}, "role_not_allowed"),
    ):
        done = cli("nodes", "cordon", node.node_id, "--reason", "x", env=env)
        assert done.returncode == 3
        assert code in done.stderr
    assert cli("nodes", "list", env={"HETEROFLEET_TOKEN": server.tokens["viewer"]}).returncode == 0


def test_what_is_not_there(cli: Cli) -> None:
    for words in (
        ("tasks", "show", "none"),
        ("tasks", "stop", "none"),
        ("tasks", "logs", "none"),
        ("nodes", "show", "none"),
    ):
        done = cli(*words)
        assert done.returncode == 5, done.stderr
        assert "none" in done.stderr


def test_what_is_refused(cli: Cli, node: SimulatedNode) -> None:
    taken = f"taken-{secrets.token_hex(3)}"
    assert cli("tasks", "run", "--id", taken, "--image", "app:1", "--node", "nowhere").returncode == 0
    assert cli("tasks", "run", "--id", taken, "--image", "app:1", "--node", "nowhere").returncode == 0
    done = cli("tasks", "run", "--id", taken, "--image", "app:2", "--node", "nowhere")
    assert done.returncode == 6
    assert "task_exists" in done.stderr
    done = cli("tasks", "run", "-f", "-", stdin="image: app\nvolums: []\npriority: 900\n")
    assert done.returncode == 6
    assert "volums" in done.stderr
    assert "volumes" in done.stderr
    assert "priority: found 900" in done.stderr


def test_waiting_stopping_and_deleting(cli: Cli) -> None:
    task_id = f"stays-{secrets.token_hex(3)}"
    words = ("tasks", "run", "--id", task_id, "--image", "app", "--node", "nowhere")
    assert cli(*words, "--wait-timeout", "0.2").returncode == 7
    watched: list[subprocess.CompletedProcess[str]] = []
    watcher = threading.Thread(target=lambda: watched.append(cli(*words, "--wait")))
    watcher.start()
    assert cli("tasks", "delete", task_id).returncode == 8
    assert cli("tasks", "stop", task_id, "--wait", "--wait-timeout", "30s").returncode == 0
    watcher.join(60)
    assert watched[0].returncode == 70
    assert "cancelled" in watched[0].stderr
    assert cli("tasks", "delete", task_id, "--yes").returncode == 0
    assert cli("tasks", "show", task_id).returncode == 5


def test_releasing_the_name_of_a_node_that_is_heard_is_refused(cli: Cli, node: SimulatedNode) -> None:
    done = cli("nodes", "release", node.node_id, "--yes")
    assert done.returncode == 6, done.stderr
    assert "node_online" in done.stderr
    assert node.node_id in cli("nodes", "list").stdout
