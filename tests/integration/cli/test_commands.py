"""What the commands send, and what they print: standard output is for the answer, standard error for the rest."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.protocol.names import is_task_id
from tests.integration.cli.conftest import PROGRAM, TOKEN, Cli
from tests.integration.cli.plane import Reply, ScriptedPlane, problem, reply

NODE: dict[str, Any] = {
    "id": "gpu-a",
    "state": "online",
    "schedulable": True,
    "cordon": None,
    "draining": False,
    "hostname": "gpu-a.example.com",
    "last_seen_at": "2026-03-01T12:00:00.000Z",
    "agent": {"version": "0.1.0", "commit": "1f2e3d4c5b", "dirty": True},
    "host": {"os": "Debian 12", "kernel": "6.1.0", "cpu_cores": 64, "memory_total_mib": 524288},
    "docker": {"available": True, "version": "27.1", "runtimes": ["runc", "nvidia"]},
    "slots": {"total": 64, "used": 2},
    "labels": {"rack": "7"},
    "gpus": [
        {
            "uuid": "GPU-8f6a2b1c-0d3e-4f5a-9b8c-7d6e5f4a3b2c",
            "vendor": "nvidia",
            "model": "NVIDIA H100 80GB HBM3",
            "memory_total_mib": 81559,
            "node_id": "gpu-a",
            "health": "ok",
            "temperature_c": None,
            "utilization_pct": None,
            "allocated_to": ["t1"],
        }
    ],
    "warnings": [{"code": "clock_skew", "detail": "the clock is 40 s behind"}],
}
TASK: dict[str, Any] = {
    "id": "01jq3v5m8n9p0qrstvwxyz0123",
    "uid": "6d0b3f0e-8d0f-4d43-a2a9-0e3f4a5b6c7d",
    "name": "train-a-very-large-model-with-a-very-long-name-that-does-not-fit",
    "kind": "training",
    "driver": "docker",
    "status": "running",
    "phase": "pulling",
    "desired": "run",
    "attempt": 2,
    "node_id": "gpu-a-with-a-long-name-too.example",
    "exit_code": None,
    "created_at": "2026-03-01T12:00:00.000Z",
    "gpus_assigned": [{"uuid": "GPU-1", "model": "H100"}],
    "attempts": [{"attempt": 1, "node_id": "gpu-b", "exit_code": 137, "reason": "oom_killed"}],
    "spec": {"image": "reg.local:5000/team/app:1.0"},
    "warnings": [],
}
WHY = {
    "summary": "waits for a card",
    "smallest_change": {"text": "free one card on gpu-a"},
    "nodes": [{"node_id": "gpu-a", "constraints": [{"code": "gpu_free", "ok": False, "text": "no card free"}]}],
}
LISTS = [
    (("nodes", "list"), "/api/v1/nodes", {"nodes": [NODE]}, "gpu-a"),
    (("nodes", "show", "gpu-a"), "/api/v1/nodes/gpu-a", NODE, "gpu-a.example.com"),
    (("gpus", "list"), "/api/v1/gpus", {"gpus": NODE["gpus"]}, "GPU-8f6a2b1c-"),
    (("tasks", "list"), "/api/v1/tasks", {"tasks": [TASK], "next_cursor": None}, TASK["id"]),
    (("tasks", "show", "t1"), "/api/v1/tasks/t1", TASK, TASK["uid"]),
    (
        ("events",),
        "/api/v1/events",
        {"events": [{"id": 7, "time": "2026-03-01T12:00:00.000Z", "kind": "task_state", "detail": "x" * 200}]},
        "task_state",
    ),
    (("tasks", "why", "t1"), "/api/v1/tasks/t1/why", WHY, "no card free"),
    (("gpus", "why", "GPU-1"), "/api/v1/gpus/GPU-1/why", WHY, "no card free"),
    (("nodes", "why", "gpu-a"), "/api/v1/nodes/gpu-a/why", WHY, "no card free"),
]


@pytest.mark.parametrize(
    ("words", "path", "body", "shown"), LISTS, ids=lambda x: "-".join(x) if isinstance(x, tuple) else ""
)
def test_tables_in_a_pipe_are_plain_and_nothing_is_cut(
    cli: Cli, plane: ScriptedPlane, words: tuple[str, ...], path: str, body: Any, shown: str
) -> None:
    plane.on("GET", path, reply(body))
    done = cli(*words, env={"COLUMNS": "40"})
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout
    assert "…" not in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("words", "path", "body", "shown"), LISTS, ids=lambda x: "-".join(x) if isinstance(x, tuple) else ""
)
def test_json_is_the_body_as_it_came(
    cli: Cli, plane: ScriptedPlane, words: tuple[str, ...], path: str, body: Any, shown: str
) -> None:
    raw = json.dumps(body, indent=3, ensure_ascii=False) + "\n"
    plane.on("GET", path, Reply(body=raw.encode()))
    assert cli(*words, "-o", "json").stdout == raw
    assert cli("-o", "json", *words).stdout == raw
    assert yaml.safe_load(cli(*words, "-o", "yaml").stdout) == body


def test_unknown_is_not_zero(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("GET", "/api/v1/gpus", reply({"gpus": [{"uuid": "u", "vendor": "v", "utilization_pct": None}]}))
    plane.on("GET", "/api/v1/nodes", reply({"nodes": [{"id": "n", "state": "lost", "gpus": None, "slots": None}]}))
    assert "0" not in cli("gpus", "list").stdout
    assert "0" not in cli("nodes", "list").stdout


PORT = {"name": "ibx_0", "port": 1, "state": "down", "rate_gbps": 10.0, "link_layer": "InfiniBand", "fabric": "east"}
SILENT = {**dict.fromkeys(PORT), "name": "ibx_1"}


@pytest.mark.parametrize(
    ("hcas", "lines"),
    [
        (None, ["adapters -"]),
        ([], ["adapters none"]),
        (
            [PORT, SILENT],
            [
                "adapter ibx_0 port 1: InfiniBand, down, 10 Gb/s, fabric east",
                "adapter ibx_1: -, -, rate not known, no fabric named",
            ],
        ),
    ],
)
def test_infiniband_ports_of_a_node(cli: Cli, plane: ScriptedPlane, hcas: Any, lines: list[str]) -> None:
    plane.on("GET", "/api/v1/nodes/gpu-a", reply({**NODE, "hcas": hcas}))
    shown = [" ".join(line.split()) for line in cli("nodes", "show", "gpu-a").stdout.splitlines()]
    assert [line for line in shown if line.startswith("adapter")] == lines


def test_a_name_cannot_steer_the_terminal(cli: Cli, plane: ScriptedPlane) -> None:
    task = {**TASK, "name": "\x1b[2Jx[red]y", "error": "line\n\x1b]0;title\x07"}
    plane.on("GET", "/api/v1/tasks", reply({"tasks": [task]}))
    plane.on("GET", "/api/v1/tasks/t1", reply(task))
    assert "\x1b" not in cli("tasks", "list").stdout
    shown = cli("tasks", "show", "t1").stdout
    assert "\x1b" not in shown
    assert "[red]" in shown


def test_a_task_with_checkpoints_tells_from_where_each_attempt_went_on(cli: Cli, plane: ScriptedPlane) -> None:
    task = {**TASK, "spec": {**TASK["spec"], "checkpoint_path": "/ck"}}
    plane.on("GET", "/api/v1/tasks/t1", reply(task))
    said = "goes on from /ck/step_100 (marker, step 100); rejected: /ck/step_200: is empty"
    plane.on("GET", "/api/v1/events", reply({"events": [{"id": 7, "attempt": 2, "detail": said}]}))
    shown = " ".join(cli("tasks", "show", "t1").stdout.split())
    assert "2 goes on from /ck/step_100 (marker, step 100); rejected: /ck/step_200: is empty" in shown
    assert plane.asked[-1].query == {"task": [TASK["id"]], "kind": ["checkpoint_resume"], "limit": ["1000"]}
    assert json.loads(cli("tasks", "show", "t1", "-o", "json").stdout) == task
    assert plane.asked[-1].path == "/api/v1/tasks/t1"


def test_the_rest_of_a_long_list_is_said_beside_it(cli: Cli, plane: ScriptedPlane) -> None:
    body = {"tasks": [TASK], "next_cursor": "abc"}
    plane.on("GET", "/api/v1/tasks", reply(body))
    done = cli(
        "tasks", "list", "--status", "running,failed", "--node", "n1", "--limit", "1", "--label", "a=b", "-o", "json"
    )
    assert json.loads(done.stdout) == body
    assert done.stderr == "there are more: --cursor abc\n"
    assert plane.asked[0].query == {"status": ["running,failed"], "node_id": ["n1"], "limit": ["1"], "label": ["a=b"]}


def test_where_a_page_of_events_goes_on(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("GET", "/api/v1/events", reply({"events": [{"id": 7, "kind": "brake"}, {"id": 9, "kind": "brake"}]}))
    assert cli("events", "--limit", "2").stderr == "there may be more: --after 9\n"
    assert cli("events", "--limit", "3").stderr == ""


def test_who_asks_and_how(cli: Cli, plane: ScriptedPlane, tmp_path: Path) -> None:
    """The token goes into one header; netrc and proxies of the environment have no say."""
    plane.on("GET", "/api/v1/nodes", reply({"nodes": []}))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login eve password netrc-secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    done = cli("nodes", "list", env={"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"})
    assert done.returncode == 0, done.stderr
    assert plane.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_a_redirect_is_not_followed(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("GET", "/api/v1/nodes", Reply(307, headers={"Location": f"{plane.url}/elsewhere"}))
    assert cli("nodes", "list").returncode == 4
    assert {asked.path for asked in plane.asked} == {"/api/v1/nodes"}


def test_settings_from_file_environment_and_options(cli: Cli, plane: ScriptedPlane, tmp_path: Path) -> None:
    plane.on("GET", "/api/v1/nodes", reply({"nodes": []}))
    config = tmp_path / ".config/heterofleet/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(f"server_url: {plane.url}\ntoken: from-the-file\noutput: yaml\n")
    config.chmod(0o600)
    bare = {"HETEROFLEET_SERVER_URL": "", "HETEROFLEET_TOKEN": ""}
    done = cli("nodes", "list", env=bare)
    assert (done.stdout, done.stderr) == ("nodes: []\n", "")
    (tmp_path / "token").write_text("from-a-token-file\n")
    (tmp_path / "token").chmod(0o600)
    cli("nodes", "list", "--token-file", "token", env=bare)
    cli("nodes", "list", "-o", "json")
    cli("--token-file", "token", "nodes", "list")
    seen = [asked.headers["authorization"].removeprefix("Bearer ") for asked in plane.asked]
    assert seen == ["from-the-file", "from-a-token-file", TOKEN, "from-a-token-file"]
    config.chmod(0o644)
    assert "chmod 600" in cli("nodes", "list", env=bare).stderr


def test_a_settings_file_that_is_wrong(cli: Cli, plane: ScriptedPlane, tmp_path: Path) -> None:
    config = tmp_path / ".config/heterofleet/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("server: x\ntimeout_s: soon\ntoken: [a-secret]\n")
    done = cli("nodes", "list")
    assert done.returncode == 2
    assert "the nearest is server_url" in done.stderr
    assert "timeout_s: found 'soon'" in done.stderr
    assert "a-secret" not in done.stderr
    config.write_text("token: a-secret: c")
    broken = cli("nodes", "list").stderr
    assert "config.yaml:1:16 is not YAML" in broken and "a-secret" not in broken


def test_a_task_from_flags(cli: Cli, plane: ScriptedPlane, tmp_path: Path) -> None:
    plane.on("POST", "/api/v1/tasks", reply({"id": "t1", "status": "pending", "warnings": []}, 201))
    (tmp_path / "vars").write_text("# comment\n\nA=file\nB=two = words \nFROM_SHELL\n")
    (tmp_path / "auth.json").write_text('{"server": "reg:5000", "username": "lab", "password": "pass-word-1"}')
    words = (
        "tasks run --id t1 --image reg:5000/team/app:1 --name demo --kind training --driver docker --gpus 2 "
        "--gpu-vendor nvidia -e A=1 --env-file vars --volume /data:/data:ro --volume /srv/out:/out "
        "--registry-auth-file auth.json --timeout 10m --health-http 8000/healthz --memory 8g --cpus 2.5 --label a=b "
        "--node gpu-a --port 8000 --port 18080:8080 --max-attempts 3 --stop-grace 0 -- python -m train --follow"
    )
    done = cli(*words.split(), env={"FROM_SHELL": "exported"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "t1\n", "")
    assert plane.asked[0].body == {
        "id": "t1",
        "image": "reg:5000/team/app:1",
        "name": "demo",
        "kind": "training",
        "driver": "docker",
        "gpus": {"count": 2, "vendor": "nvidia"},
        "env": {"A": "1", "B": "two = words ", "FROM_SHELL": "exported"},
        "volumes": [
            {"host": "/data", "container": "/data", "read_only": True},
            {"host": "/srv/out", "container": "/out", "read_only": False},
        ],
        "registry_auth": {"server": "reg:5000", "username": "lab", "password": "pass-word-1"},
        "timeout_s": 600.0,
        "stop_grace_s": 0.0,
        "health": {"type": "http", "port": 8000, "path": "/healthz"},
        "memory_mib": 8192,
        "cpus": 2.5,
        "labels": {"a": "b"},
        "node_id": "gpu-a",
        "ports": [{"container": 8000}, {"container": 8080, "host": 18080}],
        "max_attempts": 3,
        "command": ["python", "-m", "train", "--follow"],
    }


@pytest.mark.parametrize("vendor", ["nvidia", "musa", "virtual", None])
def test_a_known_vendor_is_taken_without_a_word(cli: Cli, vendor: str | None) -> None:
    words = ["tasks", "run", "--image", "app", "--gpus", "1", "--dry-run"]
    assert cli(*words, *(["--gpu-vendor", vendor] if vendor else [])).stderr == ""


def test_an_unknown_vendor_is_sent_with_a_warning_that_names_the_nearest(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/tasks", reply({"id": "t1", "status": "pending", "warnings": []}, 201))
    done = cli("tasks", "run", "--id", "t1", "--image", "app", "--gpu-vendor", "nvidai")
    assert (done.returncode, done.stdout) == (0, "t1\n")
    assert done.stderr.startswith("warning: found vendor 'nvidai', wanted a known one; the nearest is nvidia; ")
    assert plane.asked[0].body["gpus"] == {"vendor": "nvidai"}
    assert "nvidia, metax, enflame, virtual" in " ".join(cli("tasks", "run", "--help").stdout.split())


SICK = {"vendor": "nvidia", "node_id": "gpu-a", "allocated_to": [], "mode": "mig"}


def test_cards_that_are_not_well_are_told_in_words(cli: Cli, plane: ScriptedPlane) -> None:
    cards = [{**SICK, "uuid": f"GPU-{n}", "health": health} for n, health in enumerate(("unknown", "unknown", "lost"))]
    plane.on("GET", "/api/v1/nodes", reply({"nodes": [{**NODE, "gpus": cards}]}))
    plane.on("GET", "/api/v1/nodes/gpu-a", reply({**NODE, "gpus": cards}))
    plane.on("GET", "/api/v1/gpus", reply({"gpus": cards}))
    assert "online, 2 cards unknown, 1 card lost" in cli("nodes", "list").stdout
    shown = cli("nodes", "show", "gpu-a").stdout
    assert "online, 2 cards unknown, 1 card lost" in shown and " mig" in shown
    done = cli("gpus", "list")
    assert "heterofleet gpus why UUID" in done.stderr and " mig" in done.stdout
    plane.on("GET", "/api/v1/nodes", reply({"nodes": [{**NODE, "state": "lost", "gpus": cards}]}))
    assert "cards unknown" not in cli("nodes", "list").stdout


def test_an_event_of_a_card_names_it(cli: Cli, plane: ScriptedPlane) -> None:
    event = {"id": 7, "time": "2026-03-01T12:00:00.000Z", "kind": "gpu_suspect", "node_id": "gpu-a"}
    told = [
        {**event, "gpu_uuid": "GPU-5a", "detail": "a list that worked lacks it"},
        {**event, "gpu_uuid": "GPU-5b", "detail": "card GPU-5b is gone"},
    ]
    plane.on("GET", "/api/v1/events", reply({"events": told}))
    shown = cli("events").stdout
    assert "card GPU-5a: a list that worked lacks it" in shown and shown.count("GPU-5b") == 1


def test_a_task_from_a_file_and_flags(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/tasks", reply({"id": "t1", "status": "pending"}, 201))
    text = "name: base\nimage: app\nenv: [A=1, B=2, BARE]\nlabels: {x: y}\ngpus: {count: 1, model: H100*}\n"
    done = cli("tasks", "run", "-f", "-", "-e", "B=3", "--label", "z=w", "--gpus", "4", stdin=text)
    assert done.returncode == 0, done.stderr
    body = plane.asked[0].body
    assert is_task_id(body.pop("id"))
    assert body == {
        "name": "base",
        "image": "app",
        "env": ["A=1", "BARE", "B=3"],
        "labels": {"x": "y", "z": "w"},
        "gpus": {"count": 4, "model": "H100*"},
    }


def test_an_answer_that_got_lost_is_asked_for_again_with_the_same_id(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/tasks", Reply(hang_up=True), reply({"id": "t1", "status": "pending"}))
    done = cli("tasks", "run", "--image", "app")
    assert done.returncode == 0, done.stderr
    first, second = (asked.body for asked in plane.asked)
    assert first == second


def test_an_outcome_that_stays_unknown_is_said_with_the_id(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/tasks", Reply(hang_up=True))
    done = cli("tasks", "run", "--image", "app", "--id", "t9")
    assert done.returncode == 4
    assert "whether task t9 was taken is not known" in done.stderr


def test_a_change_that_has_no_id_is_sent_once(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/tasks/t1/stop", Reply(hang_up=True))
    assert cli("tasks", "stop", "t1").returncode == 4
    assert len(plane.asked) == 1


@pytest.mark.parametrize("key", ["reg.local:5000", "https://reg.local:5000"])
def test_a_login_from_docker(cli: Cli, plane: ScriptedPlane, tmp_path: Path, key: str) -> None:
    plane.on("POST", "/api/v1/tasks", reply({"id": "t1", "status": "pending"}, 201))
    auth = base64.b64encode(b"lab:pass:word").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"other": {"auth": "eDp5"}, key: {"auth": auth}}}))
    cli("tasks", "run", "--image", "reg.local:5000/a:1", "--registry-auth-file", "config.json")
    assert plane.asked[0].body["registry_auth"] == {
        "server": "reg.local:5000",
        "username": "lab",
        "password": "pass:word",
    }
    done = cli("tasks", "run", "--image", "else.where/a:1", "--registry-auth-file", "config.json")
    assert done.returncode == 2
    assert "holds no login for else.where" in done.stderr


def test_a_dry_run_shows_no_secret_and_asks_nobody(cli: Cli, plane: ScriptedPlane, tmp_path: Path) -> None:
    (tmp_path / "auth").write_text("server: r\nusername: u\npassword: pass-word-1\n")
    done = cli(
        *("tasks", "run", "--image", "a", "-e", "K=env-secret-1", "--registry-auth-file", "auth", "--dry-run"),
        env={"HETEROFLEET_TOKEN": "", "HETEROFLEET_SERVER_URL": ""},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["env"] == {"K": "***"}
    assert "secret-1" not in done.stdout
    assert "pass-word-1" not in done.stdout
    assert plane.asked == []


def test_a_broken_env_file_does_not_show_its_values(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("KEY=abc\nmore-of-a-torn-secret\n")
    done = cli("tasks", "run", "--image", "a", "--env-file", "vars")
    assert done.returncode == 2
    assert "vars, line 2: found a line without '='" in done.stderr
    assert "torn" not in done.stderr


def test_warnings_of_the_control_plane_are_said(cli: Cli, plane: ScriptedPlane) -> None:
    body = {"id": "t1", "status": "pending", "warnings": [{"code": "env_dropped", "detail": "BARE has no value"}]}
    plane.on("POST", "/api/v1/tasks", reply(body, 201))
    done = cli("tasks", "run", "--image", "a", "-o", "json")
    assert json.loads(done.stdout) == body
    assert done.stderr == "warning: BARE has no value (env_dropped)\n"


def chunk(start: int, data: str, attempt: int = 1, end: int | None = None) -> Reply:
    stop = start + len(data.encode()) if end is None else end
    return reply({"attempt": attempt, "from": start, "to": stop, "data": data, "dropped": 0})


def test_following_shows_the_log_once_and_its_gaps(cli: Cli, plane: ScriptedPlane) -> None:
    running = {**TASK, "id": "t1", "attempt": 1, "phase": "running"}
    done_task = {**running, "status": "failed", "exit_code": 3, "reason": "exited"}
    plane.on("POST", "/api/v1/tasks", reply({**running, "status": "pending", "attempt": 0, "node_id": None}, 201))
    plane.on("GET", "/api/v1/tasks/t1", reply(running), reply(running), reply(running), reply(done_task))
    plane.on(
        "GET",
        "/api/v1/tasks/t1/logs",
        chunk(0, "one\n"),
        chunk(2, "e\ntwo ä\n"),  # begins before the position that was asked for
        chunk(111, "three\n"),  # 100 bytes are gone
        chunk(117, "last\n"),
        chunk(122, ""),
    )
    done = cli("tasks", "run", "--image", "a", "--follow")
    assert done.returncode == 3
    assert done.stdout == "one\ntwo ä\nthree\nlast\n"
    assert "[100 bytes of output are gone before this line]" in done.stderr
    assert "task t1: running on" in done.stderr
    asked = [a.query.get("from") for a in plane.asked if a.path.endswith("/logs")]
    assert asked[:4] == [None, ["4"], ["11"], ["117"]]


def test_following_goes_on_with_the_next_attempt(cli: Cli, plane: ScriptedPlane) -> None:
    first = {**TASK, "id": "t1", "attempt": 1, "phase": "running"}
    second = {**first, "attempt": 2, "status": "completed", "exit_code": 0}
    plane.on("POST", "/api/v1/tasks", reply(first, 201))
    plane.on("GET", "/api/v1/tasks/t1", reply(first), reply({**first, "status": "pending"}), reply(second))
    plane.on("GET", "/api/v1/tasks/t1/logs", chunk(0, "a1\n"), chunk(3, ""), chunk(0, "a2\n", 2), chunk(3, "", 2))
    done = cli("tasks", "run", "--image", "a", "--follow")
    assert (done.returncode, done.stdout) == (0, "a1\na2\n")
    assert "attempt" in [a for a in plane.asked if a.path.endswith("/logs")][-1].query


def test_a_task_that_ends_before_its_log_was_read_shows_the_tail(cli: Cli, plane: ScriptedPlane) -> None:
    ended = {**TASK, "id": "t1", "status": "failed", "exit_code": 1, "log_tail": "the last words\n"}
    plane.on("POST", "/api/v1/tasks", reply(ended, 201))
    plane.on("GET", "/api/v1/tasks/t1", reply(ended))
    plane.on("GET", "/api/v1/tasks/t1/logs", chunk(0, "", 2))
    assert cli("tasks", "run", "--image", "a", "--follow").stdout == "the last words\n"


def test_the_last_words_of_an_ended_task_come_from_its_report(cli: Cli, plane: ScriptedPlane) -> None:
    """What was sent live ends where the reader's interest was heard of too late, or the stream was cut."""
    ended = {**TASK, "id": "t1", "attempt": 1, "status": "failed", "exit_code": 1, "log_tail": "one\ntwo\nthree\n"}
    plane.on("GET", "/api/v1/tasks/t1", reply(ended))
    plane.on("GET", "/api/v1/tasks/t1/logs", chunk(0, "one\ntw"))
    assert cli("tasks", "logs", "t1").stdout == "one\ntwo\nthree\n"
    assert cli("tasks", "logs", "t1", "--tail", "1").stdout == "three\n"
    plane.on("GET", "/api/v1/tasks/t1/logs", chunk(0, ""))
    assert cli("tasks", "logs", "t1").stdout == "one\ntwo\nthree\n"
    plane.on("GET", "/api/v1/tasks/t1/logs", chunk(0, "something else\n"))
    done = cli("tasks", "logs", "t1")
    assert done.stdout == "something else\none\ntwo\nthree\n"
    assert "[output may be missing here" in done.stderr


def test_a_watcher_that_is_interrupted_leaves_the_task_alone(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/tasks", reply({**TASK, "id": "t1"}, 201))
    plane.on("GET", "/api/v1/tasks/t1", reply({**TASK, "id": "t1"}))
    with subprocess.Popen(
        [str(PROGRAM), "tasks", "run", "--image", "a", "--wait"], env=cli.variables(), stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        seen = process.stderr.readline() + process.stderr.readline()
        assert b"running on" in seen
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(30) == 130
    assert b"goes on" in rest
    assert {(asked.method, asked.path) for asked in plane.asked} == {
        ("POST", "/api/v1/tasks"),
        ("GET", "/api/v1/tasks/t1"),
    }


def test_following_as_json_ends_with_the_task_alone(cli: Cli, plane: ScriptedPlane) -> None:
    ended = {**TASK, "id": "t1", "attempt": 1, "status": "completed", "exit_code": 0}
    plane.on("POST", "/api/v1/tasks", reply(ended, 201))
    plane.on("GET", "/api/v1/tasks/t1", reply(ended))
    plane.on("GET", "/api/v1/tasks/t1/logs", chunk(0, "words\n"), chunk(6, ""))
    done = cli("tasks", "run", "--image", "a", "--follow", "-o", "json")
    assert json.loads(done.stdout) == ended
    assert "words\n" in done.stderr


def test_the_watcher_outlives_an_outage(cli: Cli, plane: ScriptedPlane) -> None:
    ended = {**TASK, "id": "t1", "status": "completed", "exit_code": 0}
    plane.on("POST", "/api/v1/tasks", reply({**ended, "status": "pending"}, 201))
    plane.on("GET", "/api/v1/tasks/t1", *[Reply(hang_up=True)] * 4, reply(ended))
    done = cli("tasks", "run", "--image", "a", "--wait")
    assert done.returncode == 0
    assert done.stderr.count("still trying, the task goes on") == 1


def test_logs_as_text_with_a_tail_and_as_json(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("GET", "/api/v1/tasks/t1/logs", chunk(0, "1\n2\n3\n"))
    plane.on("GET", "/api/v1/tasks/t1", reply({**TASK, "id": "t1", "attempt": 1}))
    assert cli("tasks", "logs", "t1").stdout == "1\n2\n3\n"
    assert cli("tasks", "logs", "t1", "--tail", "2").stdout == "2\n3\n"
    assert cli("tasks", "logs", "t1", "--tail", "0").stdout == ""
    assert json.loads(cli("tasks", "logs", "t1", "-o", "json", "--attempt", "1").stdout)["to"] == 6


def test_logs_are_followed_to_the_end(cli: Cli, plane: ScriptedPlane) -> None:
    ended = {**TASK, "id": "t1", "attempt": 1, "status": "failed", "exit_code": 9}
    plane.on("GET", "/api/v1/tasks/t1/logs", chunk(0, "1\n"), chunk(2, "2\n"), chunk(4, ""))
    plane.on("GET", "/api/v1/tasks/t1", reply(ended))
    done = cli("tasks", "logs", "-f", "t1")
    assert (done.returncode, done.stdout) == (0, "1\n2\n")
    assert "with exit code 9" in done.stderr


@pytest.mark.parametrize(
    ("words", "method", "path", "body"),
    [
        (
            ("nodes", "cordon", "n1", "--reason", "fan is loud"),
            "POST",
            "/api/v1/nodes/n1/cordon",
            {"reason": "fan is loud"},
        ),
        (("nodes", "uncordon", "n1"), "POST", "/api/v1/nodes/n1/uncordon", None),
        (("nodes", "release", "n1", "--yes"), "POST", "/api/v1/nodes/n1/release", None),
        (("tasks", "stop", "t1"), "POST", "/api/v1/tasks/t1/stop", None),
        (("tasks", "sleep", "t1"), "POST", "/api/v1/tasks/t1/sleep", None),
        (("tasks", "wake", "t1"), "POST", "/api/v1/tasks/t1/wake", None),
        (("tasks", "reschedule", "t1"), "POST", "/api/v1/tasks/t1/reschedule", None),
        (("tasks", "delete", "t1", "--yes"), "DELETE", "/api/v1/tasks/t1", None),
    ],
)
def test_changes(cli: Cli, plane: ScriptedPlane, words: tuple[str, ...], method: str, path: str, body: Any) -> None:
    plane.on(method, path, reply({"id": words[2], "status": "running"}, 202))
    done = cli(*words)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert words[2] in done.stderr
    assert [(a.method, a.path, a.body) for a in plane.asked] == [(method, path, body)]


def test_stop_waits_for_the_end(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/tasks/t1/stop", reply(TASK, 202))
    plane.on(
        "GET", "/api/v1/tasks/t1", reply({**TASK, "id": "t1", "status": "stopped", "reason": "stopped_by_operator"})
    )
    done = cli("tasks", "stop", "t1", "--wait")
    assert done.returncode == 0
    assert "task t1 stopped (stopped_by_operator)" in done.stderr


@pytest.mark.parametrize(
    ("action", "now", "then", "code", "sentence"),
    [
        ("sleep", "running", "sleeping", 0, "task t1 is sleeping on gpu-a"),
        ("sleep", "running", "completed", 1, "task t1 completed"),
        ("wake", "sleeping", "running", 0, "task t1 is running on gpu-a"),
        ("wake", "sleeping", "failed", 1, "task t1 failed"),
        ("reschedule", "pending", "running", 0, "task t1 is running on gpu-a"),
        ("reschedule", "pending", "cancelled", 1, "task t1 cancelled"),
        ("wake", "sleeping", "sleeping", 7, "has not been woken within 1 s"),
    ],
)
def test_waiting_for_sleep_wake_and_reschedule(
    cli: Cli, plane: ScriptedPlane, action: str, now: str, then: str, code: int, sentence: str
) -> None:
    """Ended instead is a failure, whatever the end."""
    task = {**TASK, "id": "t1", "node_id": "gpu-a", "reason": None}
    plane.on("POST", f"/api/v1/tasks/t1/{action}", reply({**task, "status": now}, 202))
    plane.on("GET", "/api/v1/tasks/t1", reply({**task, "status": now}), reply({**task, "status": then}))
    done = cli("tasks", action, "t1", *(("--wait-timeout", "1s") if code == 7 else ("--wait",)))
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr


def test_json_after_waiting_is_the_state_that_was_waited_for(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/tasks/t1/sleep", reply({**TASK, "id": "t1", "status": "running"}, 202))
    plane.on("GET", "/api/v1/tasks/t1", reply({**TASK, "id": "t1", "status": "sleeping"}))
    done = cli("tasks", "sleep", "t1", "--wait", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "sleeping")


def test_a_forced_delete(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("DELETE", "/api/v1/tasks/t1", Reply(204))
    done = cli("tasks", "delete", "t1", "--force", "--yes", "-o", "json")
    assert (done.returncode, done.stdout) == (0, "")
    assert plane.asked[0].query == {"force": ["true"]}


def test_a_problem_is_an_error_and_never_on_standard_output(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("GET", "/api/v1/nodes", problem("node_not_found", "No such node."))
    done = cli("nodes", "list", "-o", "json")
    assert (done.returncode, done.stdout) == (5, "")


def test_the_version(cli: Cli) -> None:
    done = cli("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("heterofleet, version ")


@pytest.mark.parametrize(
    ("words", "method", "path", "body"),
    [
        (("release", "gpu-a"), "POST", "/api/v1/nodes/gpu-a/release", NODE),
        (("delete", "gpu-a"), "DELETE", "/api/v1/nodes/gpu-a", None),
    ],
)
def test_a_name_is_given_up_only_after_a_yes(
    cli: Cli, plane: ScriptedPlane, words: tuple[str, ...], method: str, path: str, body: Any
) -> None:
    plane.on(method, path, reply(body) if body is not None else Reply(204))
    assert cli("nodes", *words).returncode == 8, "nobody can answer"
    assert plane.asked == []
    done = cli("nodes", *words, "--yes", "-o", "json")
    assert done.returncode == 0 and [asked.path for asked in plane.asked] == [path]
    assert (json.loads(done.stdout) if body is not None else done.stdout) == (body if body is not None else "")
    plane.on(method, path, problem("node_online", "it is online"))
    refused = cli("nodes", *words, "--yes")
    assert refused.returncode == 6 and "node_online" in refused.stderr


def test_a_drain_says_until_when_and_what_then(cli: Cli, plane: ScriptedPlane) -> None:
    plane.on("POST", "/api/v1/nodes/gpu-a/drain", reply(NODE))
    assert cli("nodes", "drain", "gpu-a", "--reason", "new disk", "--deadline", "2h", "--then", "stop").returncode == 0
    assert plane.asked[0].body == {"reason": "new disk", "deadline_s": 7200.0, "then": "stop"}
