"""A real control plane for demo, tests and benches: `heterofleet server run` as a process of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Optional

from tests.lab import places
from tests.lab.daemon import Daemon
from tests.lab.process import LabError, run

HETEROFLEET = str(Path(sys.executable).parent / "heterofleet")


class ControlPlane:
    """Settings, key and token in ``folder``; the process is remembered on disk, so another program finds it.

    ``name`` tells several apart. Everything belongs to the lab's state and goes with it.
    """

    def __init__(
        self,
        name: str = "control-plane",
        *,
        listen: Optional[str] = None,
        doorbell: Optional[str] = None,
        **settings: Any,
    ) -> None:
        listen = listen or f"{places.HOST_ADDRESS}:{places.port()}"
        # An empty one turns the doorbell off.
        doorbell = f"{places.HOST_ADDRESS}:{places.port(1)}" if doorbell is None else doorbell
        self.name = name if places.port() == 3333 else f"{name}-{places.port()}"
        self.listen = listen
        self.url = f"http://{listen}"
        self.folder = places.state() / self.name
        self.settings: dict[str, Any] = {"listen": listen, "doorbell_listen": doorbell, **settings}  # at its next start
        self.run_options: tuple[str, ...] = ()  # of `heterofleet server run`, at its next start
        self._daemon = Daemon(self.name)

    @property
    def key(self) -> str:
        return self.key_file.read_text().strip()

    @property
    def key_file(self) -> Path:
        return self.folder / "system-key"

    @property
    def token_file(self) -> Path:
        return self.folder / "operator-token"

    @property
    def settings_file(self) -> Path:
        return self.folder / "server.yaml"

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    @property
    def builds_dir(self) -> Path:
        return self.state_dir / "builds"

    @property
    def log(self) -> Path:
        return self._daemon.log

    @property
    def pid(self) -> Optional[int]:
        return self._daemon.pid

    def prepare(self) -> None:
        """Write settings and a key of its own; what is there stays."""
        places.make_folder(self.folder, 0o700)
        places.make_folder(self.state_dir, 0o700)
        places.make_folder(self.builds_dir)
        if not self.key_file.exists():
            places.write_atomically(self.key_file, secrets.token_urlsafe(32).encode(), 0o600)
        settings = {"state_dir": str(self.state_dir), "api_key_file": str(self.key_file), **self.settings}
        # JSON is YAML, too.
        places.write_atomically(self.settings_file, json.dumps(settings, indent=1).encode(), 0o600)

    def start(self, timeout: float = 60) -> None:
        """Running and ready when this returns."""
        if self.pid is not None:
            return
        self.prepare()
        self._daemon.start(
            [HETEROFLEET, "server", "run", "--config", str(self.settings_file), *self.run_options],
            self.ready,
            timeout=timeout,
        )
        if not self.token_file.exists():
            # Two processes on one database need a name each.
            self.make_token(f"lab-{self.name}", "admin", self.token_file)

    def make_token(self, name: str, role: str, path: Path) -> None:
        made = run(
            [HETEROFLEET, "server", "token", "create"]
            + ["--config", str(self.settings_file), "--name", name, "--role", role]
        )
        places.write_atomically(path, made.stdout.strip().splitlines()[-1].encode(), 0o600)

    def ready(self) -> object:
        status, body = self.request("GET", "/readyz", login=False)
        return status == 200 or f"{status} {body}"

    def stop(self) -> None:
        """The clean way: SIGTERM, requests in flight finish."""
        self._daemon.stop()

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        pid = self.pid
        if pid is None:
            raise LabError(f"{self.name} does not run")
        os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            while self.pid is not None:
                pass
        self._daemon.forget()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cli(self, *words: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """The operator's command line against this control plane."""
        environ = {
            **os.environ,
            "HETEROFLEET_SERVER_URL": self.url,
            "HETEROFLEET_TOKEN": self.token_file.read_text().strip(),
        }
        return run([HETEROFLEET, *words], env=environ, check=check, timeout=timeout)

    def request(
        self, method: str, path: str, body: Any = None, *, login: bool = True, timeout: float = 10
    ) -> tuple[int, Any]:
        """One call with the operator's token: status (0 when nothing answers) and the parsed body."""
        request = urllib.request.Request(
            self.url + path, method=method, data=None if body is None else json.dumps(body).encode()
        )
        request.add_header("Content-Type", "application/json")
        if login:
            request.add_header("Authorization", f"Bearer {self.token_file.read_text().strip()}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _parsed(error.read())
        except OSError as error:
            return 0, str(error)

    def get(self, path: str) -> Any:
        """A body that must come with 200."""
        status, body = self.request("GET", path)
        if status != 200:
            raise LabError(f"GET {path}: found {status}, wanted 200: {body}. Read {self.log}.")
        return body


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data.decode(errors="replace")
