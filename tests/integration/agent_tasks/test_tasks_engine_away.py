"""An engine that cannot be reached for a while, with containers that run on."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agent_tasks.agent_bench import Agent, Plane
from tests.integration.waiting import until
from tests.lab import engine


class SocketGate:
    """Forwards a Unix socket to Docker's. ``shut`` ends all connections and refuses new ones; the next answer to
    a request that begins with ``lose_answer_to`` is lost, with its connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lose_answer_to: bytes | None = None
        self._doomed: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.open()

    def open(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def shut(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect("/var/run/docker.sock")
            with self._lock:
                self._open |= {near, far}
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.lose_answer_to is not None and data.startswith(self.lose_answer_to):
                    self.lose_answer_to = None
                    self._doomed.add(target)
                if source in self._doomed:
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def docker_of(agent: Agent) -> dict[str, object]:
    beats = [body for method, path, body in list(agent.proxy.seen) if path.endswith("/agent/heartbeat")]
    return dict(beats[-1].get("docker") or {}) if beats else {}


@pytest.mark.case("FC-005")
def test_an_engine_that_is_away_is_no_end(plane: Plane, make_agent: Callable[..., Agent], tmp_path: Path) -> None:
    """The socket was away for half a minute: the work was called dead, and was doubled."""
    gate = SocketGate(tmp_path / "docker.sock")
    agent = make_agent(docker_host=f"unix://{gate.path}", reconcile_interval_s=1)
    running = [agent.submit("forever") for _ in range(3)]
    ending = agent.submit("sleep", "6", "exit", "0")
    for task_id in (*running, ending):
        plane.phase(task_id, "running")
    before = {task_id: agent.running(task_id)["Id"] for task_id in running}
    gate.shut()
    until("the heartbeat says so", lambda: docker_of(agent).get("available") is False)
    assert "does not answer" in str(docker_of(agent)["error"])
    late = agent.submit("exit", "0")
    reconciled = len(agent.proxy.seen)
    until("the program has ended", lambda: not (agent.container(ending) or {})["State"]["Running"])
    until("some beats pass", lambda: len(agent.proxy.seen) > reconciled + 4)
    for task_id in running:
        task = plane.task(task_id)
        assert (task["status"], task["attempt"], task["phase"]) == ("running", 1, "running")
    assert plane.task(late)["status"] in ("pending", "scheduled")
    gate.open()
    assert plane.ended(ending)["reason"] == "exited"
    assert plane.ended(late)["status"] == "completed"
    for task_id in running:
        assert agent.running(task_id)["Id"] == before[task_id]
        plane.stop_task(task_id)
    for task_id in running:
        assert plane.ended(task_id)["status"] == "stopped"
    assert engine.docker("ps", "-q", "--filter", f"label=heterofleet.node={agent.node_id}") == ""


def test_a_container_whose_making_was_not_answered_is_the_one_that_runs(
    plane: Plane, make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    """The engine made it, the answer was lost: another one was made beside it, under the spare name."""
    gate = SocketGate(tmp_path / "docker.sock")
    gate.lose_answer_to = b"POST /v1.41/containers/create"
    agent = make_agent(docker_host=f"unix://{gate.path}")
    task_id = agent.submit("forever")
    agent.running(task_id)
    assert gate.lose_answer_to is None
    own = engine.docker("ps", "-aq", "--filter", f"label=heterofleet.node={agent.node_id}").split()
    assert len(own) == 1
    plane.stop_task(task_id)
    assert plane.ended(task_id)["status"] == "stopped"
