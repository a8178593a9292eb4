"""A real control plane, a real agent and the machine's own Docker Engine, wired together over loopback.

Between agent and control plane stands a proxy that can refuse, delay or lose answers.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.integration.task_calls import TaskCalls
from tests.integration.waiting import until
from tests.lab import engine, task_image
from tests.lab.process import run

BIN = Path(sys.executable).parent
UNIT = Path(__file__).parents[3] / "templates" / "heterofleet-agent.service.j2"
HEAPS = UNIT.read_text().partition("Environment=MALLOC_ARENA_MAX=")[2].split()[0]
ENDED = ("completed", "failed", "stopped", "cancelled")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxy:
    """Forwards to the control plane. ``rule(method, path, body)`` may return ``drop`` (forward, then lose the
    answer), an HTTP status to answer instead, or None."""

    def __init__(self, target_port: int) -> None:
        self.rule: Callable[[str, str, Any], str | int | None] = lambda method, path, body: None
        self.seen: list[tuple[str, str, Any]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(data) if data else None
                proxy.seen.append((self.command, self.path, body))
                verdict = proxy.rule(self.command, self.path, body)
                if isinstance(verdict, int):
                    self.send_response(verdict)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                upstream = HTTPConnection("127.0.0.1", target_port, timeout=30)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                upstream.request(self.command, self.path, data or None, headers)
                answer = upstream.getresponse()
                content = answer.read()
                upstream.close()
                if verdict == "drop":
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = int(self._http.server_address[1])
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def puts(self, status: str) -> list[Any]:
        """Bodies of task changes to this status that the agent sent."""
        return [body for method, path, body in self.seen if method == "PUT" and body and body.get("status") == status]

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


class Plane(TaskCalls):
    """``heterofleet server run`` on SQLite, on loopback."""

    def __init__(self, folder: Path) -> None:
        engine_version = engine.version()
        assert engine_version, "a Docker Engine must run on this machine: `python -m tests.lab up` starts one"
        folder.mkdir(mode=0o700)
        self.port = free_port()
        self.key = secrets.token_urlsafe(24)
        self.folder = folder
        (folder / "key").write_text(self.key)
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "doorbell_listen": f"127.0.0.1:{free_port()}",
            "state_dir": str(folder / "state"),
            "api_key_file": str(folder / "key"),
            "heartbeat_interval_s": 1,
        }
        self._settings = folder / "server.yaml"
        self._settings.write_text(json.dumps(settings))
        for path in (self._settings, folder / "key"):
            path.chmod(0o600)
        self._log = (folder / "server.log").open("w")
        self._process = subprocess.Popen(
            [BIN / "heterofleet", "server", "run", "--config", self._settings], stdout=self._log, stderr=self._log
        )
        until("the control plane is ready", self._ready)
        made = run([str(BIN / "heterofleet"), "server", "token", "create", "--config", str(self._settings)]
                   + ["--name", "test", "--role", "admin"])  # fmt: skip
        self._token = made.stdout.strip().splitlines()[-1]

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/v1{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                content = answer.read()
                return answer.status, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def ended(self, task_id: str, timeout: float = 60) -> dict[str, Any]:
        until(f"{task_id} ends: {self.task(task_id)}", lambda: self.task(task_id)["status"] in ENDED, timeout)
        return self.task(task_id)

    def phase(self, task_id: str, phase: str, timeout: float = 30) -> dict[str, Any]:
        until(f"{task_id} is {phase}: {self.task(task_id)}", lambda: self.task(task_id)["phase"] == phase, timeout)
        return self.task(task_id)

    def stop_task(self, task_id: str) -> None:
        status, body = self.call("POST", f"/tasks/{task_id}/stop")
        assert status == 202, body

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            return False


class Agent:
    """``heterofleet-agent run`` behind a proxy; its node's name is its own."""

    def __init__(self, plane: Plane, folder: Path, **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.plane = plane
        self.folder = folder
        self.node_id = f"n-{secrets.token_hex(4)}"
        self.proxy = Proxy(plane.port)
        self.log = folder / "agent.log"
        self._settings = folder / "agent.yaml"
        base = {
            "server_url": f"http://127.0.0.1:{self.proxy.port}",
            "api_key_file": str(plane.folder / "key"),
            "state_dir": str(folder / "state"),
            "node_id": self.node_id,
            "disk_min_free_mib": 10,
            "volumes_allow": [str(folder / "data")],
            "report_total_s": 3,
            "report_backoff_max_s": 1,
            "poll_interval_s": 1,
        }
        self._settings.write_text(json.dumps({**base, **settings}))
        self._settings.chmod(0o600)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        until("the node is registered", lambda: plane.call("GET", f"/nodes/{self.node_id}")[0] == 200)

    def start(self) -> None:
        with self.log.open("a") as log:
            as_installed = {"MALLOC_ARENA_MAX": HEAPS}
            environ = {**os.environ, **as_installed, "DOCKER_API_VERSION": "1.12", "HTTP_PROXY": "http://127.0.0.1:9"}
            self._process = subprocess.Popen(
                [BIN / "heterofleet-agent", "run", "--config", self._settings], stdout=log, stderr=log, env=environ
            )

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def submit(self, *command: str, **spec: Any) -> str:
        return self.plane.submit(self.node_id, *command, **spec)

    def container(self, task_id: str) -> dict[str, Any] | None:
        """What the engine says of the task's container; None when there is none."""
        ids = engine.docker("ps", "-aq", "--no-trunc", "--filter", f"label=heterofleet.task={task_id}").split()
        assert len(ids) <= 1, f"{task_id} has {len(ids)} containers"
        if not ids:
            return None
        inspected = run(["docker", "inspect", ids[0]], check=False)  # it may go between the two calls
        return dict(json.loads(inspected.stdout)[0]) if inspected.returncode == 0 else None

    def running(self, task_id: str) -> dict[str, Any]:
        """The container, once it runs."""

        def look() -> Any:
            found = self.container(task_id)
            return found if found and found["State"]["Running"] else None

        return dict(until(f"{task_id} runs", look))

    def logs(self, task_id: str) -> str:
        """All that the container printed, by Docker's own client."""
        found = self.container(task_id)
        return run(["docker", "logs", found["Id"]], check=False).stdout if found else ""

    def gone(self, task_id: str) -> None:
        until(f"the container of {task_id} is gone", lambda: self.container(task_id) is None)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()
        self.proxy.close()
        left = engine.docker("ps", "-aq", "--filter", f"label=heterofleet.node={self.node_id}").split()
        if left:
            engine.docker("rm", "-f", "-v", *left)


def load_task_image() -> None:
    run(["docker", "load"], input=task_image.image().archive(task_image.NAME))


def remove_test_images() -> None:
    """What these tests pulled or built, by the names that only they use."""
    names = engine.docker("images", "--digests", "--format", "{{.Repository}} {{.Tag}} {{.Digest}}").splitlines()
    for repository, tag, digest in (name.split() for name in names):
        if repository.startswith("127.0.0.1:") or "/app-" in repository or repository == "hf-lab/volume":
            run(["docker", "rmi", f"{repository}:{tag}" if tag != "<none>" else f"{repository}@{digest}"], check=False)
