"""The same way, the same reasons and the same ends as with Docker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.process.host import RECORDS, Host
from tests.integration.waiting import until


@pytest.mark.parametrize(
    ("script", "members", "wanted"),
    [
        ("echo good", {}, ("completed", "exited", 0)),
        ("exit 3", {}, ("failed", "exited", 3)),
        ("kill -9 $$", {}, ("failed", "signalled", 137)),
        ("exec no-such-program", {}, ("failed", "exited", 127)),
        ("a=x; while :; do a=$a$a; done", {"memory_mib": 32}, ("failed", "oom_killed", 137)),
        ("sleep 60", {"timeout_s": 1}, ("failed", "timeout", 124)),
    ],
)
def test_ends(host: Host, script: str, members: dict[str, Any], wanted: tuple[str, str, int]) -> None:
    end = host.run(script, **members)
    assert (end["status"], end["reason"], end["exit_code"]) == wanted, end


def test_a_program_that_is_not_there(host: Host) -> None:
    end = host.ended(host.submit("no-such-program"))
    assert (end["status"], end["reason"], end["exit_code"]) == ("failed", "exited", 127)
    assert "no-such-program" in end["log_tail"]


def test_a_stop_is_heard_and_a_deaf_program_is_killed(host: Host) -> None:
    hears = host.running("/bin/sh", "-c", "trap 'echo heard; exit 7' TERM; echo ready; while :; do sleep 0.05; done")
    deaf = host.running("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done", stop_grace_s=1)
    for task in (hears, deaf):
        until("it is ready", lambda task=task: "ready" in host.output(task))
        host.stop(task)
    first, second = host.ended(hears), host.ended(deaf)
    assert (first["status"], first["exit_code"], first["log_tail"]) == ("stopped", 7, "ready\nheard\n")
    assert (second["status"], second["exit_code"]) == ("stopped", 137)


def test_a_probe_is_asked_on_the_hosts_own_address(host: Host) -> None:
    health = {"type": "http", "port": 18765, "path": "/", "interval_s": 1}
    task = host.submit("python3", "-m", "http.server", "18765", "--bind", "127.0.0.1", workdir="/srv", health=health)
    until("it is ready", lambda: host.fleet.task(task)["ready"])


@pytest.mark.parametrize("user", ["root", "0", "nobody:root", "hf-no-such-user"])
def test_who_a_task_may_not_be(host: Host, user: str) -> None:
    end = host.run("id", user=user)
    assert (end["status"], end["reason"], end["log_tail"]) == ("failed", "profile_rejected", None)


def test_a_secret_is_on_no_command_line_and_in_no_unit(host: Host) -> None:
    secret = "Kf3-not-for-others"
    task = host.running("/bin/sh", "-c", "[ ${#TOKEN} -gt 9 ] && sleep 60", env={"TOKEN": secret})
    unit = f"heterofleet-task-{task}"
    shown = host.node.sh(f"systemctl show {unit}; systemctl cat {unit}; ps -eo args; journalctl -o cat -u {unit}")
    assert unit in shown
    assert secret not in shown
    files = host.node.sh(f"grep -l {secret} -r {RECORDS}; stat -c '%a %U' {RECORDS} {RECORDS}/*.go").split()
    assert (len([name for name in files if name.endswith(".go")]), files[1:3]) == (1, ["700", "root"])
    assert files[3:5] == ["600", "root"]


def test_a_name_that_is_taken_gets_the_uid(host: Host) -> None:
    task = "p-taken"
    host.node.run(["systemd-run", "--collect", f"--unit=heterofleet-task-{task}", "sleep", "60"])
    try:
        end = host.run("exit 6", id=task)
        assert (end["exit_code"], host.pid(task) > 0) == (6, True), "what has the name is left alone"
    finally:
        host.node.run(["systemctl", "stop", f"heterofleet-task-{task}"])


def test_volumes_come_through_the_fence(host: Host) -> None:
    host.node.sh("mkdir -p /srv/hf-in /srv/hf-out && echo here >/srv/hf-in/marker && chmod 777 /srv/hf-out")
    try:
        volumes = [{"host": "/srv/hf-in", "container": "/srv/hf-in"},
                   {"host": "/srv/hf-out", "container": "/srv/hf-out", "read_only": False}]  # fmt: skip
        script = "cat /srv/hf-in/marker && echo out >/srv/hf-out/made && touch /srv/hf-in/new"
        end = host.run(script, volumes=volumes)
        assert (end["exit_code"], end["log_tail"].splitlines()[0]) == (1, "here")
        assert host.node.sh("cat /srv/hf-out/made; ls /srv/hf-in").split() == ["out", "marker"]
        for place in ("/etc", "/var/lib/heterofleet/agent"):
            assert host.run("true", volumes=[{"host": place, "container": "/x"}])["reason"] == "volume_rejected"
        bad = [{"host": "/srv/hf-in", "container": "/etc/heterofleet"}]
        assert host.run("true", volumes=bad)["reason"] == "volume_rejected"
    finally:
        host.node.sh("rm -rf /srv/hf-in /srv/hf-out")


def test_the_operators_command(host: Host) -> None:
    words = [
        "tasks",
        "run",
        "--driver",
        "process",
        "--name",
        "by-hand",
        "--follow",
        "--",
        "/bin/sh",
        "-c",
        "echo hi; exit 9",
    ]
    done = host.fleet.plane.cli(*words, check=False)
    assert (done.returncode, "hi" in done.stdout) == (9, True)
