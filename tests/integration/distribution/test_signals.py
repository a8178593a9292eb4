"""The install script ended in the middle: by a signal, by the loss of its terminal, by a power cut."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.integration.distribution.front import Front, front
from tests.integration.distribution.site import KEY, SCRIPT, Site, changed, snapshot

# Where the script stands, by the request that it, or the agent that it started, waits on.
ASKS_FOR_KEY = "/api/v1/agent/preflight"
DOWNLOADS = "/static/agent"
CONFIRMS = "/api/v1/agent/heartbeat"


@dataclass
class Pause:
    """Requests for ``path`` wait at the door until the block ends."""

    path: str
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __call__(self, path: str) -> None:
        if path == self.path:
            self.reached.set()
            self.go_on.wait(60)


@contextmanager
def paused(site: Site, path: str) -> Iterator[tuple[Front, Pause]]:
    with front(site.plane.url) as door:
        pause = Pause(path)
        door.hold = pause
        try:
            yield door, pause
        finally:
            pause.go_on.set()


def running(site: Site, door: Front) -> subprocess.CompletedProcess[str]:
    """The script as a group of processes of its own, which is what a terminal sends its signals to."""
    start = f"echo $$ >/root/pid; exec sh {SCRIPT} --key-file {KEY} --server {door.url}"
    return site.node.run(["setsid", "--wait", "sh", "-c", start], check=False, timeout=120)


@pytest.mark.parametrize(
    ("point", "signal", "whom"),
    [
        (ASKS_FOR_KEY, "INT", "-"),
        (DOWNLOADS, "TERM", ""),
        (DOWNLOADS, "INT", "-"),
        (CONFIRMS, "HUP", ""),
        (CONFIRMS, "TERM", "-"),
    ],
)
def test_a_signal_ends_it_with_9_and_everything_is_as_before(site: Site, point: str, signal: str, whom: str) -> None:
    before = snapshot(site.node)
    with paused(site, point) as (door, pause), ThreadPoolExecutor(1) as pool:
        script = pool.submit(running, site, door)
        assert pause.reached.wait(60)
        site.node.sh(f"kill -{signal} {whom}$(cat /root/pid)")
        done = script.result(90)
    site.node.run(["rm", "/root/pid"])
    assert done.returncode == 9, done.stderr
    assert "cut short" in done.stderr
    assert changed(before, snapshot(site.node)) == []
    assert site.property("ActiveState") != "active"


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
@pytest.mark.parametrize("file", ["agent.key", "agent.yaml"])
def test_a_signal_between_two_files_leaves_none_or_the_next_run_removes_them(
    site: Site, signal: str, file: str
) -> None:
    before = snapshot(site.node)
    watch = f"while [ ! -e /etc/heterofleet/{file} ]; do :; done; kill -{signal} $child"
    script = f"sh {SCRIPT} --key-file {KEY} & child=$!; {watch}; wait $child"
    done = site.node.run(["sh", "-c", script], check=False, timeout=120)
    if signal == "KILL":
        assert done.returncode == 137
        assert site.node.run(["test", "-d", "/opt/heterofleet/.undo"]).returncode == 0
        recovers(site)
    else:
        assert done.returncode == 9, done.stderr
    assert changed(before, snapshot(site.node)) == []


@pytest.mark.parametrize("point", [DOWNLOADS, CONFIRMS])
def test_after_a_power_cut_the_next_run_takes_back_first(site: Site, point: str) -> None:
    before = snapshot(site.node)
    with paused(site, point) as (door, pause), ThreadPoolExecutor(1) as pool:
        script = pool.submit(running, site, door)
        assert pause.reached.wait(60)
        site.node.sh("kill -KILL -$(cat /root/pid)")
        assert "cut short" not in script.result(90).stderr
        site.node.run(["rm", "/root/pid"])
        recovers(site)
    assert changed(before, snapshot(site.node)) == []
    assert site.property("LoadState") == "not-found"


def recovers(site: Site) -> None:
    """The next run, which itself finds a reason to change nothing."""
    again = site.install("--key-file", KEY, "--version", "0.0.0")
    assert again.returncode == 6, again.stderr
    assert "an earlier run was cut short: taking back what it had done" in again.stdout


# argv: what to wait for on the terminal, and what to do then. Prints the exit code, whether the terminal echoes
# (1 or 0, - when it is gone) and what was shown.
_TERMINAL = """
import os, pty, sys, termios
until, then, script = sys.argv[1].encode(), sys.argv[2], sys.argv[3:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(script[0], script)
shown = b""
while until not in shown:
    shown += os.read(terminal, 4096)
echo = "-"
if then == "close":
    os.close(terminal)
else:
    os.write(terminal, bytes.fromhex(then))
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:
            break
        if not more:
            break
        shown += more
    echo = int(bool(termios.tcgetattr(terminal)[3] & termios.ECHO))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), echo)
print(shown.decode(errors="replace"))
"""


def test_at_the_question_for_the_key(site: Site) -> None:
    """Not shown while it is typed; Ctrl-C there leaves a terminal that shows what is typed."""
    before = snapshot(site.node, times=True)
    question = f"System key of {site.plane.url}: "

    def terminal(then: str) -> list[str]:
        words = ["python3", "-Ic", _TERMINAL, question, then, "sh", SCRIPT, "--dry-run"]
        return site.node.run(words, timeout=60).stdout.splitlines()

    typed = terminal(f"{site.plane.key}\n".encode().hex())
    assert typed[0] == "0 1", typed
    assert "dry run: would install" in "\n".join(typed)
    assert site.plane.key not in "\n".join(typed)
    assert terminal(b"wrong-key-0123456\n".hex())[0] == "3 1"
    assert terminal(b"\n".hex())[0] == "3 1"
    assert terminal(b"half-a-key\x03".hex())[0] == "9 1"
    assert terminal("close")[0] == "9 -"
    assert changed(before, snapshot(site.node, times=True)) == []


def test_a_terminal_that_is_gone_ends_it_with_9(site: Site) -> None:
    before = snapshot(site.node)
    with paused(site, DOWNLOADS) as (door, _):
        words = [
            "python3",
            "-Ic",
            _TERMINAL,
            "fetching",
            "close",
            "sh",
            SCRIPT,
            "--key-file",
            KEY,
            "--server",
            door.url,
        ]
        assert site.node.run(words, timeout=90).stdout.splitlines()[0] == "9 -"
    assert changed(before, snapshot(site.node)) == []
