"""Where bad input comes from: wrong servers, small disks, running agents."""

from __future__ import annotations

import contextlib
import errno
import http.server
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.contract.live import AGENT, GOOD_KEY, clean_environment, run
from tests.lab.process import wait_for


class WrongServer:
    """A web server that is no control plane: a page for every path, or a redirect. It keeps what it was sent."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        asked: list[dict[str, str]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                asked.append(dict(self.headers.items()))
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_: object) -> None:
                """Nothing: the test looks at ``asked``."""

        self.asked = asked
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> WrongServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def page() -> WrongServer:
    return WrongServer(200, {"Content-Type": "text/html"}, b"<html>Welcome to nginx!</html>")


def redirect(target: str) -> WrongServer:
    return WrongServer(302, {"Location": target}, b"")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory of this size, mounted at ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)], check=True, timeout=20
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=20)


def fill(folder: Path) -> Path:
    """Take every free byte of the folder's file system; removing the file gives them back."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    file.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break
    return ballast


def agent_file(folder: Path, **settings: Any) -> Path:
    """An agent.yaml that is right but for ``settings``; no engine, no cards."""
    path = folder / "agent.yaml"
    known = {
        "server_url": "http://127.0.0.1:9",
        "api_key": GOOD_KEY,
        "node_id": "bad-input",
        "state_dir": str(folder / "agent"),
        "docker_host": f"unix://{folder}/no-engine.sock",
    }
    path.write_text(json.dumps({**known, **settings}))
    path.chmod(0o600)
    return path


def status(file: Path) -> tuple[int, dict[str, Any]]:
    done = run(AGENT, "status", "--json", "--config", str(file))
    return done.returncode, json.loads(done.stdout) or {}


def running_agent_says(file: Path, code: str) -> tuple[int, dict[str, Any], str]:
    """Run the agent until its status names ``code``: (exit code of status, status, what the agent logged).

    The agent must still be up then, and end cleanly when told to.
    """
    with subprocess.Popen(
        [AGENT, "run", "--config", str(file)], stderr=subprocess.PIPE, text=True, env=clean_environment()
    ) as agent:
        found: list[tuple[int, dict[str, Any]]] = []

        def says() -> object:
            found.append(status(file))
            error = found[-1][1].get("last_error")
            # What an earlier run has left behind says nothing of this one.
            mine = found[-1][1].get("pid") == agent.pid
            return (mine and error is not None and error["code"] == code) or f"{found[-1]}, agent {agent.poll()}"

        try:
            wait_for(f"the status says {code}", says, 30)
            assert agent.poll() is None, "the agent gave up"
        finally:
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
            _, errors = agent.communicate(timeout=30)
    assert agent.returncode == 0, errors
    return (*found[-1], errors)
