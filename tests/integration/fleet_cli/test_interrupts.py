"""Ctrl-C in the middle of a run, with the real Ansible: once, twice, and what other signals do. No process stays."""

from __future__ import annotations

import base64
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet_cli.conftest import HOLD, Fleet, Run, mode, processes_of, told
from tests.integration.fleet_cli.test_runs import token_of
from tests.integration.server_core.plane import Plane
from tests.integration.waiting import until

DEAF = "trap '' TERM INT HUP; touch {{ at }}/$0.here; while :; do sleep 0.2; done"
"""A step that ends for nobody."""
MARKER = "hf-op-marker+of/this=run"


@pytest.fixture
def recorded(fleet: Fleet, plane: Plane) -> Fleet:
    """A fleet whose runs the control plane is told of."""
    fleet.variables = {
        "fleet_server_url": f"http://127.0.0.1:{plane.port}",
        "fleet_token_file": str(token_of(plane, fleet.folder)),
    }
    return fleet


def outcomes(run: Run) -> dict[str, str]:
    return {host["host"]: host["outcome"] for host in run.body["hosts"]}


def nothing_is_left(fleet: Fleet) -> None:
    assert fleet.processes() == []
    assert list((fleet.home / ".cache/heterofleet/fleet").iterdir()) == []


def test_once_finishes_the_wave_and_begins_no_other(recorded: Fleet, plane: Plane) -> None:
    recorded.variables["does"] = HOLD
    recorded.write()
    run = recorded.start("-o", "json", "--wave", "1")
    recorded.here("a", run)
    run.interrupt()
    run.until_said("stopping: 1 host under way will be finished, and no further wave begins")
    recorded.go("a", "b", "c")
    assert run.end() == 130, run.said
    assert outcomes(run) == {"a": "changed", "b": "untouched", "c": "untouched"}
    assert (run.body["outcome"], run.body["interrupted"]) == ("interrupted", "between_hosts")
    assert run.body["waves"] == {"done": 1, "total": 3}
    assert not (recorded.at / "b.here").exists()
    started, ended = told(plane)
    assert (started[0], ended[0]) == ("fleet_run_started", "fleet_run_ended")
    assert "upgrade interrupted: 2 untouched, 1 changed" in ended[2]
    assert "stopped by a person (between_hosts)" in ended[2]
    nothing_is_left(recorded)


def test_twice_ends_at_once_with_no_child_left(recorded: Fleet, plane: Plane) -> None:
    """What runs is deaf and leads a session of its own, as Ansible's workers do."""
    recorded.variables["does"] = DEAF
    recorded.write()
    run = recorded.start("-o", "json", "--wave", "2")
    recorded.here("a", run)
    recorded.here("b", run)
    assert len([one for one in recorded.processes() if "trap" in one]) >= 2
    run.interrupt()
    run.until_said("stopping: 2 hosts under way will be finished")
    run.interrupt()
    run.until_said("stopping at once")
    assert run.end() == 130, run.said
    assert outcomes(run) == {"a": "cut", "b": "cut", "c": "untouched"}
    assert run.body["interrupted"] == "now"
    assert "gets the agent, when the run was stopped; the next run sets it right" in run.out.read_text()
    assert [code for code, _, _ in told(plane)] == ["fleet_run_started", "fleet_run_ended"]
    assert "2 cut, 1 untouched" in told(plane)[1][2]
    nothing_is_left(recorded)


def test_a_run_that_is_killed_itself_is_tidied_up_after_by_the_next(recorded: Fleet) -> None:
    recorded.variables["does"] = HOLD
    recorded.write()
    run = recorded.start("--wave", "1")
    recorded.here("a", run)
    run.interrupt(signal.SIGKILL)
    run.end()
    (left,) = (recorded.home / ".cache/heterofleet/fleet").iterdir()
    recorded.go("a", "b", "c")
    until("its Ansible ends, for nobody listens to it", lambda: recorded.processes() == [], 60)
    again = recorded.run("-o", "json")
    assert outcomes(again) == dict.fromkeys("abc", "changed")
    assert not left.exists()
    nothing_is_left(recorded)


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def holds(data: bytes, secret: str) -> bool:
    forms = {secret, base64.b64encode(secret.encode()).decode(), secret.replace("+", "%2B").replace("/", "%2F")}
    return any(form.encode().rstrip(b"=") in data for form in forms)


def test_no_secret_is_in_the_runs_folder_nor_in_a_childs_environment(recorded: Fleet, plane: Plane) -> None:
    """The token comes by the environment, the key by a file; looked at while Ansible is at work."""
    key = recorded.folder / "system-key"
    key.write_text(MARKER)
    key.chmod(0o600)
    token = Path(recorded.variables.pop("fleet_token_file")).read_text()
    recorded.environ = {
        "HETEROFLEET_TOKEN": token,
        "REGISTRY_PASSWORD": MARKER,
        "HTTPS_PROXY": f"http://u:{MARKER}@h:1",
    }
    recorded.variables |= {"does": f"echo {MARKER}; {HOLD}", "fleet_api_key_file": str(key)}
    recorded.write()
    run = recorded.start("-vvv", "--diff", "--wave", "1", "--set", "agent_labels={rack: r1}")
    recorded.go("a")
    recorded.here("b", run)  # what the first host printed has been told of by now
    base = recorded.home / ".cache/heterofleet/fleet"
    found = files_below(base)
    assert any(path.name == "command" for path in found), "ansible-runner's own record is not where it was looked for"
    assert [path for path, data in found.items() if holds(data, token) or holds(data, MARKER)] == []
    assert {mode(path) for path in base.iterdir()} == {0o700}
    assert mode(base) == 0o700
    children = [one for one in processes_of(recorded.home) if one.pid != run.process.pid]
    assert any("ansible-playbook" in one.command for one in children)
    shown = [name for one in children for name, value in one.environ.items() if token in value or MARKER in value]
    assert shown == []
    assert [one.command for one in children if token in one.command or "system-key" in one.command] == []
    recorded.go("a", "b", "c")
    assert run.end() == 0, run.said
    # The step itself has printed what the key file holds: with -vvv that is shown, and masked.
    assert "echo ********" in run.said
    assert not holds(run.err.read_bytes() + run.out.read_bytes(), MARKER)
    assert re.search(r"PLAY \[Upgrade in waves\]", run.said)
    assert [code for code, _, _ in told(plane)] == ["fleet_run_started", "fleet_run_ended"]
    nothing_is_left(recorded)


def test_on_a_terminal_hosts_move_and_what_ended_stays(fleet: Fleet) -> None:
    import pty

    fleet.variables["does"] = HOLD
    fleet.write()
    main, child = pty.openpty()
    run = fleet.start("--wave", "2", stderr=child)
    os.close(child)
    seen = bytearray()

    def drawn(text: str) -> Any:
        seen.extend(os.read(main, 65536))
        return text.encode() in seen

    try:
        for text in ("wave 1 of 2 begins", "gets the agent", "0 of 3 hosts ended, 0 of 2 waves"):
            until(text, lambda text=text: drawn(text), 60)
        fleet.go("a", "b", "c")
        until("the end", lambda: drawn("upgrade done: 3 changed"), 60)
    finally:
        os.close(main)
    assert run.end() == 0
    assert b"a: changed 1.0 -> 1.1" in seen
    assert b"\x1b[2K" in seen or b"\x1b[1A" in seen, "nothing was drawn over"
