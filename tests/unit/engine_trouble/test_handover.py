"""Connections that are given to systemd, and taken back by the next run."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.agent import handover
from runtime.agent.handover import Handover
from runtime.agent.notify import Notifier


class Manager:
    """What systemd does with such messages: it keeps what it is given under a name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(5)
        self.kept: dict[str, int] = {}

    def take(self) -> str:
        data, rights, _, _ = self._socket.recvmsg(4096, 4096)
        said = dict(line.partition("=")[::2] for line in data.decode().splitlines())
        if said.get("FDSTORE") == "1":
            numbers = array.array("i")
            numbers.frombytes(rights[0][2])
            self.kept[said["FDNAME"]] = numbers[0]
        elif said.get("FDSTOREREMOVE") == "1":
            os.close(self.kept.pop(said["FDNAME"]))
        return said["FDNAME"]

    def close(self) -> None:
        self._socket.close()
        for descriptor in self.kept.values():
            os.close(descriptor)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


def test_a_connection_outlives_who_opened_it(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of the agent ended the pulls that were under way, and each layer was fetched again."""
    near, engine = socket.socketpair()
    engine.settimeout(5)
    first = Handover(Notifier({"NOTIFY_SOCKET": str(manager.path)}), {})
    first.keep(near.fileno())
    name = manager.take()
    near.close()  # that run is over, as far as the kernel is concerned
    engine.sendall(b"x")
    # The next run finds it at the place where systemd puts it.
    place = os.dup(manager.kept[name])
    monkeypatch.setattr(handover, "FIRST_FD", place)
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": name, "OTHER": "stays"}
    second = Handover(Notifier({}), environ)
    assert environ == {"OTHER": "stays"}
    second.drain(5)
    for _ in range(100):
        engine.sendall(b"y" * 65536)  # it is read, so the engine is not held up
    engine.shutdown(socket.SHUT_WR)
    assert engine.recv(1) == b"", "the next run has closed it, too"
    engine.close()


def test_who_ends_a_pull_ends_its_connection_wherever_it_is_held(manager: Manager) -> None:
    near, engine = socket.socketpair()
    engine.settimeout(5)
    end = Handover(Notifier({"NOTIFY_SOCKET": str(manager.path)}), {}).keep(near.fileno())
    manager.take()
    end()
    assert engine.recv(1) == b""
    manager.take()
    assert manager.kept == {}
    near.close()
    engine.close()


def test_what_was_left_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    near, engine = socket.socketpair()
    engine.settimeout(5)
    monkeypatch.setattr(handover, "FIRST_FD", near.detach())
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "pull-1"}
    Handover(Notifier({}), environ).drain(0.05)
    assert engine.recv(1) == b""
    engine.close()


@pytest.mark.parametrize("pid", ["", "1", "x"])
def test_what_is_meant_for_another_process_is_left_alone(pid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    near, other = socket.socketpair()
    monkeypatch.setattr(handover, "FIRST_FD", near.fileno())
    environ = {"LISTEN_PID": pid, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "pull-1"}
    Handover(Notifier({}), environ).drain(0.01)
    assert environ == {}
    near.sendall(b"x")
    assert other.recv(1) == b"x"
    near.close()
    other.close()
