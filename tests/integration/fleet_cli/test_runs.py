"""Runs of small playbooks by the real ansible-runner: what is shown, what comes of it, what is recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.protocol import times
from runtime.server.services import tokens
from tests.integration.fleet_cli.conftest import WAVES, Fleet, told
from tests.integration.server_core.plane import Plane


def token_of(plane: Plane, folder: Path, role: str = "admin") -> Path:
    path = folder / f"token-{role}"
    path.write_text(tokens.create(plane.parts.db, f"deployer-{role}", role, times.now(), None))
    path.chmod(0o600)
    return path


def test_each_host_has_its_lines_and_its_end(fleet: Fleet, plane: Plane) -> None:
    """One comes up, one is put back with its reason, one cannot be reached."""
    nowhere = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    fleet.hosts = {"a": {}, "b": {"does": "echo the agent is silent >&2; exit 3"}, "c": nowhere}
    fleet.variables = {
        "fleet_server_url": f"http://127.0.0.1:{plane.port}",
        "fleet_token_file": str(token_of(plane, fleet.folder)),
        "fleet_wave": [1, 2],
    }
    fleet.write()
    run = fleet.run("-o", "json")
    assert run.process.returncode == 1, run.said
    hosts = {host["host"]: host for host in run.body["hosts"]}
    assert (hosts["a"]["outcome"], hosts["a"]["from"], hosts["a"]["to"], hosts["a"]["wave"]) == (
        "changed",
        "1.0",
        "1.1",
        1,
    )
    assert (hosts["b"]["outcome"], hosts["b"]["reason"], hosts["b"]["wave"]) == ("restored", "the agent is silent", 2)
    assert hosts["c"]["outcome"] == "unreachable"
    assert "Connection refused" in hosts["c"]["reason"]
    assert run.body["outcome"] == "failed"
    assert run.body["waves"] == {"done": 2, "total": 2}
    assert run.body["recorded"] == {"started": True, "ended": True}
    assert run.out.read_text().count("\n") == 1, "more than the document on standard output"

    lines = [
        re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in run.said.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)
    ]
    assert [line for line in lines if line.startswith(("a:", "wave"))] == [
        "wave 1 of 2 begins",
        "a: gets the agent",
        "a: changed 1.0 -> 1.1",
        *[line for line in lines if line.startswith("wave 1 has ended: 1 host in ")],
        "wave 2 of 2 begins",
        *[line for line in lines if line.startswith("wave 2 has ended: 2 hosts in ")],
    ]
    assert "b: restored 1.0 -> 1.1: the agent is silent" in lines
    assert any(line.startswith("c: cannot be reached: ") for line in lines)
    assert any(
        re.search(r"1 of 3 hosts ended, 1 of 2 waves, \d+s elapsed, about \d+s remaining", line) for line in lines
    )
    assert "unknown remaining" in lines[2]
    assert not (fleet.home / ".cache/heterofleet/fleet").exists() or not list(
        (fleet.home / ".cache/heterofleet/fleet").iterdir()
    )

    (started, ended) = told(plane)
    assert started[:2] == ("fleet_run_started", "deployer-admin")
    assert re.fullmatch(rf"upgrade begins on 3 host\(s\), by .+@.+, run {run.body['run_id']}: a, b, c\.", started[2])
    assert ended[:2] == ("fleet_run_ended", "deployer-admin")
    assert "upgrade failed: 1 restored, 1 unreachable, 1 changed, in " in ended[2]
    assert "b restored: the agent is silent" in ended[2]


def test_nobody_who_reads_ends_no_run(fleet: Fleet) -> None:
    """What is shown fails (its reader is gone), and the roll-out does not notice."""
    fleet.write()
    read, write = os.pipe()
    os.close(read)
    run = fleet.start("-o", "json", "-v", stderr=write)
    os.close(write)
    run.end()
    assert run.body["outcome"] == "done"
    assert [host["outcome"] for host in run.body["hosts"]] == ["changed"] * 3


def test_a_playbook_that_ansible_does_not_take_is_said_with_its_words(fleet: Fleet) -> None:
    fleet.write("- hosts: nodes\n  tasks:\n    - ansible.builtin.no_such_thing: {}\n")
    run = fleet.run("-o", "json")
    assert run.process.returncode == 1
    assert (run.body["outcome"], {host["outcome"] for host in run.body["hosts"]}) == ("broken", {"untouched"})
    assert "no_such_thing" in run.said
    assert any("no_such_thing" in error for error in run.body["errors"])
    assert "this run is not recorded: no address of the control plane is known" in run.said
    assert run.body["recorded"] == {"started": None, "ended": None}


def test_a_dry_run_is_check_mode_with_its_differences_and_is_not_recorded(fleet: Fleet, plane: Plane) -> None:
    plays = [
        {
            "name": "Write",
            "hosts": "nodes",
            "gather_facts": False,
            "tasks": [
                {
                    "name": "Put a file",
                    "ansible.builtin.copy": {
                        "content": "new words\n",
                        "dest": "{{ at }}/{{ inventory_hostname }}",
                        "mode": "0600",
                    },
                }
            ],
        }
    ]
    fleet.write(plays, name="deploy")
    fleet.environ = {"HETEROFLEET_SERVER_URL": f"http://127.0.0.1:{plane.port}"}
    run = fleet.run(
        "--dry-run", "--diff", "--limit", "a", "--token-file", str(token_of(plane, fleet.folder)), action="deploy"
    )
    assert run.process.returncode == 0, run.said
    assert "+new words" in run.said
    assert not (fleet.at / "a").exists()
    assert re.search(r"^a +changed", run.out.read_text(), re.MULTILINE)
    assert told(plane) == []


def test_a_control_plane_that_is_away_stops_no_run_and_is_said(fleet: Fleet) -> None:
    """And the table is for people, the verdict stands beside it."""
    fleet.hosts = {"a": {}}
    fleet.write()
    token = fleet.folder / "token"
    token.write_text("hf-op-of-nobody")
    token.chmod(0o600)
    run = fleet.run("--server", "http://127.0.0.1:9", "--token-file", str(token))
    assert run.process.returncode == 0, run.said
    assert run.said.count("the control plane was not told") == 2
    first, second = run.out.read_text().splitlines()
    assert first.split() == ["HOST", "OUTCOME", "FROM", "TO", "WAVE", "TIME", "REASON"]
    assert second.split()[:5] == ["a", "changed", "1.0", "1.1", "1"]
    assert re.search(r"^upgrade done: 1 changed, in \d+s$", run.said, re.MULTILINE)


@pytest.mark.parametrize("role", ["viewer", None])
def test_a_token_that_may_not_ends_it_before_anything_is_touched(fleet: Fleet, plane: Plane, role: str | None) -> None:
    fleet.write()
    token = token_of(plane, fleet.folder, role) if role else fleet.folder / "wrong"
    if role is None:
        token.write_text("hf-op-wrong")
        token.chmod(0o600)
    run = fleet.run("--server", f"http://127.0.0.1:{plane.port}", "--token-file", str(token))
    assert run.process.returncode == 3, run.said
    assert "wave" not in run.said
    assert told(plane) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--limit", "nobody"], 2, "no host"),
        (["-i", "missing.yml"], 2, "missing.yml: there is no such file"),
        (["--wave", "0"], 2, "wanted numbers of hosts"),
        (["--set", "fleet_api_key=s3cret"], 2, "may hold a secret"),
        (["--release", "1"], 2, "No such option"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_ansible(fleet: Fleet, words: list[str], code: int, said: str) -> None:
    fleet.write()
    run = fleet.run(*words)
    assert run.process.returncode == code
    assert said in run.said
    assert "s3cret" not in run.said.replace("fleet_api_key=s3cret", "")
    assert "begins" not in run.said


def test_what_is_hard_to_undo_is_asked_with_the_number_of_hosts(fleet: Fleet) -> None:
    fleet.write(WAVES, name="force_upgrade")
    run = fleet.run(action="force-upgrade")
    assert run.process.returncode == 8, run.said
    assert "3 hosts" in run.said
    assert "nobody answered" in run.said
    assert "begins" not in run.said


def test_help_names_every_action_without_ansible(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from runtime.fleet.command import fleet; print(sorted(fleet.commands));"
            " print('ansible_runner' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        env={**os.environ},
        check=True,
    )
    names, imported = done.stdout.splitlines()
    assert json.loads(names.replace("'", '"')) == [
        "control-plane",
        "deploy",
        "force-upgrade",
        "rollback",
        "uninstall",
        "upgrade",
        "verify",
    ]
    assert imported == "False"
