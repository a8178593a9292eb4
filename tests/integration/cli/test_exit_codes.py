"""Every exit code of the command line, reached by running it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.integration.cli.conftest import TOKEN, Cli
from tests.integration.cli.plane import Reply, ScriptedPlane, problem, reply

TASK = {"id": "t1", "uid": "u1", "name": "demo", "status": "running", "phase": "running", "attempt": 1, "node_id": "n1"}
DONE = {**TASK, "status": "completed", "exit_code": 0}


def test_0_done(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("GET", "/api/v1/nodes", reply({"nodes": []}))
    done = cli("nodes", "list")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no node is registered\n")


def test_1_the_answer_is_not_what_was_asked_for(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("GET", "/api/v1/nodes", Reply(body=b"{cut"))
    done = cli("nodes", "list")
    assert done.returncode == 1
    assert "not JSON: '{cut'" in done.stderr


def test_1_a_call_this_control_plane_does_not_have(cli: Cli) -> None:
    done = cli("tasks", "why", "t1")
    assert done.returncode == 1
    assert "does not have this call" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nodes",), "Usage:"),
        (("nodes", "liist"), "No such command 'liist'"),
        (("nodes", "list", "--what"), "No such option"),
        (("tasks", "show"), "Missing argument 'TASK'"),
        (("tasks", "run"), "nothing to run: give --image"),
        (("tasks", "run", "--image", "a", "--volume", "data:/x"), "found 'data:/x', wanted HOST:CONT"),
        (("tasks", "run", "--image", "a", "--port", "0"), "wanted CONT or HOST:CONT, ports from 1 to 65535"),
        (("tasks", "run", "--image", "a", "--timeout", "soon"), "found 'soon', wanted seconds"),
        (("tasks", "run", "--image", "a", "--memory", "1x"), "found '1x', wanted MiB"),
        (("tasks", "run", "--image", "a", "--health-http", "/health"), "wanted PORT/PATH"),
        (("tasks", "run", "--image", "a", "--label", "x"), "wanted NAME=VALUE"),
        (("tasks", "run", "--image", "a", "-e", "9=x"), "wanted a name of letters"),
        (("tasks", "run", "--image", "a", "-e", "NOT_SET_HERE"), "has no value here"),
        (("tasks", "run", "--image", "a", "--env-file", "none.env"), "cannot read the env file none.env"),
        (("tasks", "run", "--image", "a", "--registry-auth-file", "none"), "cannot read the registry file none"),
        (("tasks", "run", "--image", "a", "--gpus", "0", "--gpu-vendor", "nvidia"), "contradict each other"),
        (("tasks", "run", "-f", "none.yaml"), "none.yaml"),
        (("--server", "fleet:3333", "nodes", "list"), "a URL with its scheme"),
        (("--server", "http://fleet.example.com:3333", "nodes", "list"), "plain http:// to fleet.example.com"),
        (("--token-file", "none", "nodes", "list"), "cannot read the token file none"),
        (("-o", "xml", "nodes", "list"), "'xml' is not one of"),
        (("tasks", "logs", "-f", "-o", "json", "t1"), "leave out -f"),
    ],
)
def test_2_usage(cli: Cli, plane: ScriptedPlane, words: tuple[str, ...], said: str) -> None:
    done = cli(*words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stdout == ""
    assert plane.asked == []


def test_2_no_control_plane_is_named(cli: Cli) -> None:
    done = cli("nodes", "list", env={"HETEROFLEET_SERVER_URL": ""})
    assert done.returncode == 2
    assert "give --server URL, set HETEROFLEET_SERVER_URL" in done.stderr


def test_3_no_token(cli: Cli, plane: ScriptedPlane) -> None:
    done = cli("nodes", "list", env={"HETEROFLEET_TOKEN": ""})
    assert done.returncode == 3
    assert "token create" in done.stderr
    assert plane.asked == []


@pytest.mark.parametrize("code", ["bad_token", "role_not_allowed", "agent_key_not_allowed"])
def test_3_a_token_that_is_refused(cli: Cli, plane: ScriptedPlane, code: str) -> None:
    plane.on("GET", "/api/v1/nodes", problem(code, "Not like this."))
    done = cli("nodes", "list")
    assert done.returncode == 3
    assert code in done.stderr
    assert TOKEN not in done.stderr + done.stdout


def test_4_nobody_listens(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: a connection is refused
        done = cli("--server", f"http://127.0.0.1:{taken.getsockname()[1]}", "nodes", "list")
    assert done.returncode == 4
    assert "Connection refused" in done.stderr


def test_4_the_name_is_unknown(cli: Cli) -> None:
    done = cli("--server", "https://no-such-host.invalid:3333", "nodes", "list")
    assert done.returncode == 4
    assert "https://no-such-host.invalid:3333" in done.stderr


@pytest.mark.case("FC-054")
def test_4_it_takes_the_request_and_never_answers(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = cli(
            "--server",
            f"http://127.0.0.1:{silent.getsockname()[1]}",
            *("tasks", "stop", "t1"),
            env={"HETEROFLEET_TIMEOUT_S": "0.3"},
        )
    assert done.returncode == 4
    assert "did not answer within 0.3 s; whether it took effect is not known" in done.stderr


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Reply(200, b"<html>Welcome</html>", "text/html", ours=False), "is not a control plane"),
        (Reply(200, b'{"nodes":[]}', ours=False), "is not a control plane"),
        (Reply(502, b"<html>Bad Gateway</html>", "text/html", ours=False), "HTTP 502"),
        (Reply(302, headers={"Location": "http://elsewhere.example/login"}), "redirects to http://elsewhere.example/"),
        (problem("starting", "The control plane is starting."), "starting"),
        (problem("database_busy", "The database did not answer in time."), "database_busy"),
        (Reply(hang_up=True), "cannot reach a control plane"),
    ],
)
def test_4_what_answers_is_no_working_control_plane(cli: Cli, plane: ScriptedPlane, answer: Reply, said: str) -> None:
    plane.on("GET", "/api/v1/nodes", answer)
    done = cli("nodes", "list")
    assert done.returncode == 4
    assert said in done.stderr
    assert done.stdout == ""


def test_5_not_found(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("GET", "/api/v1/tasks/t%2F1", problem("task_not_found", "No task t/1."))
    done = cli("tasks", "show", "t/1")
    assert done.returncode == 5
    assert "No task t/1. (task_not_found, HTTP 404)" in done.stderr


@pytest.mark.parametrize(
    "answer",
    [
        problem("state_conflict", "The task has ended."),
        problem("too_many_requests", "Too fast."),
        problem("bad_parameter", "Query parameter x."),
    ],
)
def test_6_refused(cli: Cli, plane: ScriptedPlane, answer: Reply) -> None:
    plane.on("POST", "/api/v1/tasks/t1/stop", answer)
    done = cli("tasks", "stop", "t1")
    assert done.returncode == 6


def test_6_every_fault_of_a_task_is_shown(cli: Cli, plane: ScriptedPlane) -> None:
    errors = [
        {"path": "gpus.count", "found": "5000", "wanted": "at most 1024"},
        {"path": "volums", "found": "an unknown member", "wanted": "a known one; the nearest is volumes"},
    ]
    plane.on("POST", "/api/v1/tasks", problem("invalid_task", "Two.", errors=errors))
    done = cli("tasks", "run", "--image", "a", "--gpus", "5000")
    assert done.returncode == 6
    assert "2 things are wrong (invalid_task, HTTP 422)" in done.stderr
    assert "  gpus.count: found 5000, wanted at most 1024\n" in done.stderr
    assert "the nearest is volumes" in done.stderr


def test_7_waited_long_enough(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/tasks", reply(TASK, 201))
    plane.on("GET", "/api/v1/tasks/t1", reply(TASK))
    done = cli("tasks", "run", "--image", "a", "--wait", "--wait-timeout", "0.2")
    assert done.returncode == 7
    assert "has not ended within 0.2 s; it goes on" in done.stderr


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"\x04"])
def test_8_declined(cli: Cli, plane: ScriptedPlane, answer: bytes) -> None:
    code, err = cli.answering(answer, "tasks", "delete", "t1")
    assert code == 8
    assert "Delete task t1?" in err
    assert plane.asked == []


def test_8_nobody_is_there_to_answer(cli: Cli, plane: ScriptedPlane) -> None:
    done = cli("tasks", "delete", "t1")
    assert done.returncode == 8
    assert "give --yes" in done.stderr
    assert plane.asked == []


def test_a_question_that_is_answered_with_yes(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("DELETE", "/api/v1/tasks/t1", Reply(204))
    code, err = cli.answering(b"y\n", "tasks", "delete", "t1")
    assert code == 0
    assert "task t1 is deleted" in err


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"status": "completed", "exit_code": 0}, 0),
        ({"status": "failed", "exit_code": 3, "reason": "exited"}, 3),
        ({"status": "failed", "exit_code": 137, "reason": "oom_killed"}, 137),
        ({"status": "failed", "exit_code": 124, "reason": "timeout"}, 124),
        ({"status": "failed", "exit_code": None, "reason": "timeout"}, 124),
        ({"status": "failed", "exit_code": None, "reason": "image_not_found"}, 70),
        ({"status": "cancelled", "exit_code": None}, 70),
        ({"status": "failed", "exit_code": 0, "reason": "health_failed"}, 1),
        ({"status": "stopped", "exit_code": 0, "reason": "stopped_by_operator"}, 1),
        ({"status": "stopped", "exit_code": 143, "reason": "stopped_by_operator"}, 143),
    ],
)
@pytest.mark.parametrize("how", ["--follow", "--wait"])
def test_the_exit_code_of_a_followed_task(
    cli: Cli, plane: ScriptedPlane, end: dict[str, object], code: int, how: str
) -> None:
    plane.on("POST", "/api/v1/tasks", reply({**TASK, "status": "pending", "phase": None, "attempt": 0}, 201))
    plane.on("GET", "/api/v1/tasks/t1", reply(TASK), reply({**TASK, **end}))
    plane.on("GET", "/api/v1/tasks/t1/logs", reply({"attempt": 1, "from": 0, "to": 0, "data": "", "dropped": 0}))
    done = cli("tasks", "run", "--image", "a", how)
    assert done.returncode == code, done.stderr
    assert str(end["status"]) in done.stderr


def test_the_exit_codes_are_in_the_help(cli: Cli) -> None:
    shown = " ".join(cli("--help").stdout.split())
    for words in ("1 failed", "2 usage", "3 not authorised", "4 unreachable", "5 not found", "8 declined"):
        assert words in shown


def test_a_reader_that_has_enough_gets_no_traceback(cli: Cli, plane: ScriptedPlane, tmp_path: Path) -> None:
    import subprocess

    from tests.integration.cli.conftest import PROGRAM

    plane.on("GET", "/api/v1/nodes", reply({"nodes": [{"id": f"n{i}", "state": "online"} for i in range(5000)]}))
    with subprocess.Popen(
        [str(PROGRAM), "-o", "yaml", "nodes", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cli.variables(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(30) == 1
    assert err == b""
