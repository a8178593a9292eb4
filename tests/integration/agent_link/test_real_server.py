"""The agent's link against the control plane itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.agent_link.stub_server import wait_until
from tests.integration.agent_link.whole_agent import KEY, whole_agent

HETEROFLEET = str(Path(sys.executable).with_name("heterofleet"))


class ControlPlane:
    """``heterofleet server run`` on loopback, with a state folder that outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HETEROFLEET_")},
            "HETEROFLEET_API_KEY": KEY,
            "HETEROFLEET_STATE_DIR": str(folder),
            "HETEROFLEET_MODE": "dev",
            "HETEROFLEET_LISTEN": f"127.0.0.1:{self.port}",
            "HETEROFLEET_DOORBELL_LISTEN": "",
            "HETEROFLEET_HEARTBEAT_INTERVAL_S": "1",
        }
        self.token = ""

    @contextmanager
    def running(self) -> Iterator[None]:
        child = subprocess.Popen(
            [HETEROFLEET, "server", "run"], env=self.environment, stderr=subprocess.PIPE, text=True
        )
        try:
            wait_until(self._ready, 40, what="the control plane")
            yield
        finally:
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=30)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2):
                return True
        except OSError:
            return False

    def node(self, node_id: str) -> dict:
        if not self.token:
            made = subprocess.run(
                [HETEROFLEET, "server", "token", "create", "--name", "t", "--role", "viewer"],
                env=self.environment,
                capture_output=True,
                text=True,
                check=True,
            )
            self.token = made.stdout.split()[-1]
        request = urllib.request.Request(
            f"{self.url}/api/v1/nodes/{node_id}", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)


def test_a_node_registers_is_held_over_a_restart_and_leaves(tmp_path) -> None:
    server = ControlPlane(tmp_path / "server")
    agent, executor, _ = whole_agent(server.url, tmp_path / "agent", node_id="gpu-a", labels={"rack": "7"})
    with server.running():
        agent.start()
        wait_until(lambda: agent.heartbeats.status.registered, 40)
        node = wait_until(lambda: (found := server.node("gpu-a"))["gpus"] and found, 40)
        assert (node["state"], node["run"], node["labels"]) == ("online", 1, {"rack": "7"})
        assert [card["vendor"] for card in node["gpus"]] == ["virtual"]
        assert agent.heartbeats.loop.interval_s == 1 and executor.answers
        wait_until(lambda: len(executor.answers) >= 4, 40)
        assert all(answer.send_full == [] for answer in executor.answers[1:])
    wait_until(lambda: not agent.heartbeats.status.registered, 40)
    with server.running():
        wait_until(lambda: agent.heartbeats.status.registered, 40)
        again = wait_until(lambda: (found := server.node("gpu-a"))["state"] == "online" and found, 40)
        assert again["host"]["hostname"] and [card["vendor"] for card in again["gpus"]] == ["virtual"]
        agent.stop()
        wait_until(lambda: server.node("gpu-a")["state"] == "offline", 40)


def test_a_second_machine_with_the_same_id_is_refused_and_a_higher_run_is_taken_over(tmp_path) -> None:
    server = ControlPlane(tmp_path / "server")
    with server.running():
        first, *_ = whole_agent(server.url, tmp_path / "one", node_id="gpu-a")
        second, *_ = whole_agent(server.url, tmp_path / "two", node_id="gpu-a")
        first._parts.identity.take_run(41)
        first.start()
        wait_until(lambda: first.heartbeats.status.registered, 40)
        second.start()
        error = wait_until(lambda: second.heartbeats.status.last_error, 40)
        assert error.code == "node_id_in_use" and not second.heartbeats.status.registered
        second.stop()
        first.stop()

        # The state folder was put back from an old copy: its run is one that the server has seen before.
        file = tmp_path / "one" / "identity.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "run": 3}))
        third, *_ = whole_agent(server.url, tmp_path / "one", node_id="gpu-a")
        third.start()
        wait_until(lambda: third.heartbeats.status.registered, 40)
        assert third.status().run == 42
        third.stop()
