"""``heterofleet-agent`` as people and units call it: real processes, real exit codes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.agent.main import main
from tests.integration.agent_link.stub_server import StubServer, beat_answer, problem, wait_until
from tests.lab.cards import build
from tests.lab.cards.state import default_state

HEARTBEAT = "/api/v1/agent/heartbeat"
KEY = "0123456789abcdef-system-key"
AGENT = [str(Path(sys.executable).with_name("heterofleet-agent"))]


def environment(tmp_path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HETEROFLEET_")}
    own = {"HETEROFLEET_STATE_DIR": str(tmp_path / "state"), "HETEROFLEET_DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    return {**kept, **own, **more}


def run(tmp_path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AGENT, *arguments],
        env=environment(tmp_path, **more),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )


def config(tmp_path, text: str) -> str:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def good_config(tmp_path, url: str, **settings) -> str:
    values = {"server_url": url, "api_key": KEY, "node_id": "gpu-a", **settings}
    return config(tmp_path, "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items()))


@pytest.fixture
def start(tmp_path):
    """Starts agents, and ends what is left of them."""
    children: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **more: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [*AGENT, "run", *arguments],
            env=environment(tmp_path, **more),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield begin
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=40)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_until_a_signal(server: StubServer, tmp_path, start, number: int) -> None:
    server.answers[HEARTBEAT] = beat_answer()
    child = start("--config", good_config(tmp_path, server.url))
    server.wait_for(HEARTBEAT)
    status = run(tmp_path, "status", "--json", "--wait", "10")
    assert status.returncode == 0 and json.loads(status.stdout)["registered"] is True
    child.send_signal(number)
    _, errors = child.communicate(timeout=40)
    assert child.returncode == 0
    assert server.requests[-1].body["leaving"] is True
    assert KEY not in errors and "registered with control plane" in errors
    beats = [request.body for request in server.requests if request.path == HEARTBEAT]
    told = next(beat for beat in beats if "docker" in beat)  # no engine answers here: the agent runs on and says so
    assert told["docker"]["available"] is False and told["exec_mode"] == "baremetal" and told["drivers"] == []
    assert told["seq"] <= 3, "the engine's state is told at once, not with the next beat"
    down = run(tmp_path, "status", "--json")
    assert down.returncode == 1
    assert json.loads(down.stdout)["node_id"] == "gpu-a" and json.loads(down.stdout)["running"] is False
    assert "is down" in run(tmp_path, "status").stdout


def test_each_start_is_a_new_run_of_the_same_instance(server: StubServer, tmp_path, start) -> None:
    server.answers[HEARTBEAT] = beat_answer()
    for _ in range(2):
        already = len(server.requests)
        child = start("--config", good_config(tmp_path, server.url))
        server.wait_for(HEARTBEAT, already + 1)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=40)
    beats = [request.body for request in server.requests if not request.body["leaving"]]
    assert {beat["run"] for beat in beats} == {1, 2} and len({beat["instance_id"] for beat in beats}) == 1
    second = next(beat for beat in beats if beat["run"] == 2)
    assert (second["seen_control_plane_id"], second["seen_revision"]) == (beat_answer().body["control_plane_id"], 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node_id: A\n", "node_id: found 'A'"),
        ("a: [\n", "agent.yaml:2:1: found"),
        ("", "server_url: found nothing"),
    ],
)
@pytest.mark.parametrize("command", [("run",), ("config",), ("config", "check")])
def test_wrong_settings_are_78(tmp_path, command, text: str, words: str) -> None:
    done = run(tmp_path, *command, "--config", config(tmp_path, text))
    assert done.returncode == 78 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["fly"], ["run", "--speed"], ["status", "--wait", "soon"], ["inventory", "--tool", "nvidia-smi"]],
)
def test_wrong_usage_is_2(tmp_path, arguments: list[str]) -> None:
    assert run(tmp_path, *arguments).returncode == 2


def test_a_state_folder_that_cannot_be_written_is_73(server: StubServer, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    done = run(
        tmp_path,
        "run",
        "--config",
        good_config(tmp_path, server.url, state_dir=str(tmp_path / "file" / "x")),
        HETEROFLEET_STATE_DIR=str(tmp_path / "file" / "x"),
    )
    assert done.returncode == 73 and "state_dir" in done.stderr and "Traceback" not in done.stderr


def test_two_agents_on_one_state_folder_are_refused(server: StubServer, tmp_path, start) -> None:
    server.answers[HEARTBEAT] = beat_answer()
    start("--config", good_config(tmp_path, server.url))
    server.wait_for(HEARTBEAT)
    done = run(tmp_path, "run", "--config", str(tmp_path / "agent.yaml"))
    assert done.returncode == 73 and "another agent runs" in done.stderr


def test_status_where_no_agent_is_is_3(tmp_path) -> None:
    done = run(tmp_path, "status", "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 3 and str(tmp_path) in said.pop("error")
    assert (said.pop("registered"), said.pop("running"), said.pop("loops"), said.pop("stuck_tools")) == (
        *(False, False),
        *([], []),
    )
    assert set(said) >= {"node_id", "instance_id", "run", "version", "server_url", "control_plane_id", "last_beat_at"}
    assert set(said.values()) == {None}, "a number of results that nobody knows is not 0"


def test_status_that_may_not_look_does_not_say_that_there_is_no_agent(tmp_path, monkeypatch, capsys) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setenv("HETEROFLEET_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(Path, "open", denied)
    assert main(["status"]) == 1
    output, errors = capsys.readouterr()
    assert output == "" and f"{tmp_path}/status.json cannot be read by this user" in errors


def test_status_of_a_refused_agent_is_1_and_says_why(server: StubServer, tmp_path, start) -> None:
    server.answers[HEARTBEAT] = problem(401, "bad_api_key")
    child = start("--config", good_config(tmp_path, server.url))
    path = tmp_path / "state" / "status.json"
    wait_until(lambda: path.exists() and json.loads(path.read_text())["last_error"])
    done = run(tmp_path, "status", "--json", "--wait", "0.5")
    assert done.returncode == 1 and json.loads(done.stdout)["last_error"]["code"] == "bad_api_key"
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=40)
    assert child.returncode == 0 and errors.count("bad_api_key") == 1 and KEY not in errors


def test_status_waits_until_the_server_has_heard_the_agent(server: StubServer, tmp_path, start) -> None:
    refusals = [problem(503, "starting"), problem(503, "starting")]
    server.answers[HEARTBEAT] = lambda request: refusals.pop() if refusals else beat_answer()
    start("--config", good_config(tmp_path, server.url))
    server.wait_for(HEARTBEAT)
    assert run(tmp_path, "status", "--wait", "45").returncode == 0


def test_config_prints_origins_and_no_secret(tmp_path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    key.chmod(0o600)
    file = config(tmp_path, f"server_url: http://127.0.0.1:1\napi_key_file: {key}\n")
    done = run(tmp_path, "config", "--config", file, "--node-id", "gpu-b", HETEROFLEET_MAX_TASKS="9")
    assert done.returncode == 0 and KEY not in done.stdout + done.stderr
    assert f'api_key: "********"  # {key}' in done.stdout
    assert 'node_id: "gpu-b"  # command line' in done.stdout
    assert "max_tasks: 9  # HETEROFLEET_MAX_TASKS" in done.stdout
    assert "workers:" in done.stdout and "# default" in done.stdout
    assert run(tmp_path, "config", "check", "--config", file).stdout == f"{file}: 4 settings, no fault\n"


def test_config_without_settings_names_the_file_it_looked_for(tmp_path) -> None:
    done = run(tmp_path, "config")
    assert done.returncode == 78 and "there is no file /etc/heterofleet/agent.yaml" in done.stderr


def test_version(tmp_path) -> None:
    assert json.loads(run(tmp_path, "version", "--json").stdout).keys() == {"version", "commit", "built_at", "dirty"}
    assert run(tmp_path, "version").stdout.startswith("heterofleet-agent ")


def test_inventory_needs_nothing_and_shows_the_cards(tmp_path) -> None:
    cards = tmp_path / "cards.json"
    cards.write_text(json.dumps(default_state("n", 2)))
    more = {"HF_LAB_CARDS": str(cards), "LD_LIBRARY_PATH": str(build.library().parent)}
    done = run(tmp_path, "inventory", "--json", **more)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["source"] == "nvml" and report["error"] is None
    assert report["classes"] == [{"class": "nvidia-h100-80gb-hbm3-80g", "count": 2}]
    assert report["gpus"][0]["health"] == {"ok": True, "problems": []}
    assert not any("accelerator" in sentence for sentence in report["cannot"])
    assert isinstance(report["models"], list) and isinstance(report["engines"], list)
    assert not (tmp_path / "state").exists()

    state = default_state("n", 2)
    state["cards"][1]["faults"] = {"handle": {"error": 15, "delay_s": 0, "hang": False}}
    cards.write_text(json.dumps(state))
    lost = json.loads(run(tmp_path, "inventory", "--json", **more).stdout)
    assert [failure["index"] for failure in lost["gpu_collect_failures"]] == [1]

    smi = tmp_path / "smi"
    smi.write_bytes(build.tool())
    smi.chmod(0o755)
    by_tool = json.loads(run(tmp_path, "inventory", "--json", "--no-nvml", "--nvidia-smi", str(smi), **more).stdout)
    assert by_tool["source"] == "nvidia-smi" and [gpu["index"] for gpu in by_tool["gpus"]] == [0]
    assert len(by_tool["gpu_collect_failures"]) == 1
    none = json.loads(run(tmp_path, "inventory", "--json", "--no-gpu").stdout)
    assert none["source"] == "none" and none["gpus"] == [] and none["cannot"]


def test_inventory_goes_on_when_a_tool_fails(tmp_path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho NVIDIA-SMI has failed because it could not talk to the driver; exit 9\n")
    tool.chmod(0o755)
    done = run(tmp_path, "inventory", "--json", "--no-nvml", "--tool", f"nvidia-smi={tool}")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["gpus"] == [] and report["source"] == "unavailable"
    assert "has failed" in report["error"] and "has failed" in done.stderr


def test_the_agent_opens_no_listening_port(server: StubServer, tmp_path, start) -> None:
    server.answers[HEARTBEAT] = beat_answer()
    child = start("--config", good_config(tmp_path, server.url))
    server.wait_for(HEARTBEAT)
    inodes = set()
    for descriptor in Path(f"/proc/{child.pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{child.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening.add(fields[9])
    assert not inodes & listening


def test_a_full_disk_at_the_start_is_73(server: StubServer, tmp_path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(full)], check=True)
    try:
        (full / "filler").write_bytes(b"x" * 12 * 1024)
        done = run(
            tmp_path,
            "run",
            "--config",
            good_config(tmp_path, server.url),
            HETEROFLEET_STATE_DIR=str(full / "state"),
        )
    finally:
        subprocess.run(["umount", str(full)], check=True)
    assert done.returncode == 73 and "state_dir" in done.stderr and "Traceback" not in done.stderr
    assert server.requests == []
