"""The command over real nodes: stopped at once in the middle of a change, run again, and stopped between hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.roles.ansible import Fleet
from tests.lab.control_plane import HETEROFLEET
from tests.lab.process import wait_for

WAIT_S = 120


@dataclass
class Command:
    """`heterofleet fleet` with a home folder of its own, so that its processes are told from others'."""

    fleet: Fleet
    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start(self, action: str, *words: str) -> subprocess.Popen[bytes]:
        self.home.mkdir(exist_ok=True)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("HETEROFLEET_", "XDG_"))}
        inventory = str(self.fleet.write())
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            return subprocess.Popen(
                [HETEROFLEET, "fleet", action, "-i", inventory, "-o", "json", *words],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env={**environ, "HOME": str(self.home)},
            )

    def said(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def wait_said(self, process: subprocess.Popen[bytes], text: str) -> None:
        def there() -> object:
            assert process.poll() is None, self.said()
            return text in self.said()

        wait_for(f"{text!r} is said", there, WAIT_S, 0.1)

    def end(self, process: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any]]:
        rc = process.wait(600)
        return rc, json.loads((self.folder / "out").read_text())

    def left(self) -> list[str]:
        """What still runs of it, and what is left of its folder."""
        found = [str(path) for path in (self.home / ".cache/heterofleet/fleet").iterdir()]
        wanted = f"HOME={self.home}\0".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text(errors="replace"))
            except OSError:
                continue
        return found


@pytest.fixture
def command(fleet: Fleet, tmp_path: Path) -> Iterator[Callable[[], Command]]:
    made = Command(fleet, tmp_path)
    yield lambda: made
    assert made.left() == []


@pytest.mark.timeout(900)
def test_what_one_run_left_half_done_the_next_sets_right(command: Callable[[], Command], fleet: Fleet) -> None:
    run = command()
    fleet.nodes = fleet.nodes[:2]
    first, second = (node.name for node in fleet.nodes)
    assert fleet.plane is not None

    # At once, while a host changes: it stays half done, and nothing of the run stays here.
    process = run.start("deploy", "--wave", "1")
    run.wait_said(process, f"{first}: gets the agent")
    process.send_signal(signal.SIGINT)
    run.wait_said(process, "stopping: 1 host under way will be finished")
    process.send_signal(signal.SIGINT)
    rc, body = run.end(process)
    assert (rc, body["outcome"], body["interrupted"]) == (130, "interrupted", "now")
    assert {host["host"]: host["outcome"] for host in body["hosts"]} == {first: "cut", second: "untouched"}
    assert run.left() == []

    # Between hosts: the first is finished, from where the last run left it; the second has no turn.
    process = run.start("deploy", "--wave", "1")
    run.wait_said(process, "wave 1 of 2 begins")
    process.send_signal(signal.SIGINT)
    rc, body = run.end(process)
    assert (rc, body["outcome"], body["interrupted"]) == (130, "interrupted", "between_hosts"), run.said()
    hosts = {host["host"]: host for host in body["hosts"]}
    assert hosts[first]["outcome"] == "changed", hosts
    assert (hosts[second]["outcome"], hosts[second]["reason"]) == ("skipped", "a stop was asked for")
    assert body["waves"] == {"done": 1, "total": 2}
    assert fleet.nodes[1].run(["test", "-e", "/opt/heterofleet"], check=False).returncode == 1

    # What is there now, by everybody's word: the first is as wanted, the second has nothing.
    rc, body = run.end(run.start("verify"))
    assert (rc, body["outcome"]) == (1, "failed"), run.said()
    assert {host["host"]: host["outcome"] for host in body["hosts"] if host["host"] != "localhost"} == {
        first: "equal",
        second: "differs",
    }

    told = fleet.plane.get("/api/v1/events?kind=operator_action&limit=1000")["events"]
    ends = [event["detail"].partition(",")[0] for event in told if event["code"] == "fleet_run_ended"]
    assert ends[-3:] == ["deploy interrupted: 1 cut", "deploy interrupted: 1 skipped", "verify failed: 2 differs"]
    assert {event["actor"] for event in told if event["code"].startswith("fleet_run")} == {f"lab-{fleet.plane.name}"}
