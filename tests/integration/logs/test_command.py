"""``heterofleet tasks logs`` against a real task: into a pipe, on a terminal, while it runs and afterwards."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.integration.agent_tasks.agent_bench import BIN, Agent, Plane
from tests.integration.logs.reading import numbers_in_order
from tests.integration.waiting import until


class Command:
    def __init__(self, plane: Plane, folder: Path) -> None:
        token = folder / "token"
        token.write_text(plane._token)
        token.chmod(0o600)
        self._start = [BIN / "heterofleet", "--server", f"http://127.0.0.1:{plane.port}", "--token-file", token]
        self._env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm"}

    def __call__(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*self._start, *words], env=self._env, capture_output=True, timeout=120)

    def on_terminal(self, *words: str) -> bytes:
        """What a terminal would get."""
        ours, theirs = pty.openpty()
        with subprocess.Popen([*self._start, *words], env=self._env, stdout=theirs, stderr=subprocess.DEVNULL):
            os.close(theirs)
            got = b""
            while True:
                try:
                    piece = os.read(ours, 65536)
                except OSError:
                    break
                if not piece:
                    break
                got += piece
        os.close(ours)
        return got


@pytest.fixture
def command(plane: Plane, tmp_path: Path) -> Command:
    return Command(plane, tmp_path)


def test_a_look_at_a_running_task_shows_what_it_has_printed(plane: Plane, agent: Agent, command: Command) -> None:
    """Nobody has read before: the node is asked, and nothing that was printed is left out."""
    task_id = agent.submit("lines", "30", "print", "waiting", "forever")
    plane.phase(task_id, "running")
    until("it is printed", lambda: "waiting" in agent.logs(task_id))
    done = command("tasks", "logs", task_id)
    assert done.returncode == 0, done.stderr
    assert numbers_in_order(done.stdout.decode()) == list(range(1, 31))
    assert done.stdout.endswith(b"waiting\n")
    assert command("tasks", "logs", task_id, "--tail", "2").stdout == b"line 30\nwaiting\n"
    plane.stop_task(task_id)
    plane.ended(task_id)


def test_followed_to_the_end_and_read_again_afterwards(plane: Plane, agent: Agent, command: Command) -> None:
    task_id = agent.submit("lines", "60", "0.05", "err", "it broke", "exit", "9")
    done = command("tasks", "logs", "-f", task_id)
    assert numbers_in_order(done.stdout.decode()) == list(range(1, 61))
    assert done.stdout.endswith(b"it broke\n")
    assert b"with exit code 9" in done.stderr
    assert b"missing" not in done.stderr and b"gone" not in done.stderr
    again = command("tasks", "logs", task_id)
    assert again.stdout == done.stdout
    assert command("tasks", "logs", task_id, "--attempt", "1").stdout == done.stdout
    assert command("tasks", "logs", task_id, "--attempt", "2").stdout == b""


def test_a_tail_that_is_not_all_is_said(plane: Plane, agent: Agent, command: Command) -> None:
    """Nobody read while it ran: the end of its output went with its end, and what was before is counted."""
    task_id = agent.submit("lines", "20000", "exit", "0")
    plane.ended(task_id)
    done = command("tasks", "logs", task_id)
    shown = numbers_in_order(done.stdout.decode().partition("\n")[2])
    assert shown[-1] == 20000
    assert b"bytes of output are gone before this line]" in done.stderr or b"output is gone here" in done.stdout


def test_a_terminal_is_not_commanded(plane: Plane, agent: Agent, command: Command) -> None:
    evil = r"printf '\033]0;owned\007\033[32mgreen\033[0m\033[2J\n'"
    task_id = agent.submit("/bin/sh", "-c", evil)
    plane.ended(task_id)
    assert command("tasks", "logs", task_id).stdout == b"\x1b]0;owned\x07\x1b[32mgreen\x1b[0m\x1b[2J\n", (
        "a pipe: as it is"
    )
    assert command.on_terminal("tasks", "logs", task_id) == b"\\x1b]0;owned\\x07\x1b[32mgreen\x1b[0m\\x1b[2J\r\n"
