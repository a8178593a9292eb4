"""The command as a process: bounded whatever hangs, and silent about secrets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.agent.hardware.remembered import FILE, GoneCard, Remembered, as_kept
from runtime.protocol import routes
from runtime.protocol.hardware import Gpu
from tests.integration.agent_link.stub_server import Reply, StubServer
from tests.integration.inventory.test_machines import CUT, WHOLE, cut_machine
from tests.lab.stuck import stuck_file

ROOT = Path(__file__).resolve().parents[3]
KEY = "s3cret-key-of-the-doctor"
LOGIN = "pr0xy-pass-of-the-doctor"


def run(config: Path, *words: str, **environ: str) -> tuple[subprocess.CompletedProcess[str], float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "runtime.agent.main", "doctor", "--config", str(config), *words],
        cwd=ROOT,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("HETEROFLEET_")}, **environ},
        capture_output=True,
        text=True,
        timeout=90,
    )
    return done, time.monotonic() - began


def settings_file(folder: Path, **settings: object) -> Path:
    path = folder / "agent.yaml"
    path.write_text(json.dumps({"api_key": KEY, "state_dir": str(folder / "state"), **settings}))
    path.chmod(0o600)
    return path


def test_nothing_that_hangs_holds_it(server: StubServer, tmp_path: Path) -> None:
    """An engine that takes the connection and is silent, a vendor's tool that is stuck in the kernel and survives its
    kill, a server that never answers: all at once, and still every line is there in time."""
    server.answers[routes.PREFLIGHT] = Reply(hang=60)
    with socket.socket(socket.AF_UNIX) as engine, stuck_file() as stuck:
        engine.bind(str(tmp_path / "docker.sock"))
        engine.listen()
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sh -c 'echo x >{stuck}'\n")
        tool.chmod(0o755)
        config = settings_file(
            tmp_path,
            server_url=server.url,
            docker_host=f"unix://{tmp_path}/docker.sock",
            hardware={"tools": {"nvidia-smi": str(tool)}},
        )
        done, seconds = run(config, "--json")
    assert seconds < 45
    body = json.loads(done.stdout)
    found = {one["name"]: one for one in body["checks"]}
    assert (done.returncode, body["exit_code"]) == (2, 2)
    assert found["engine"]["state"] == "failure" and "docker.sock" in found["engine"]["text"]
    assert found["server"]["state"] == "failure" and "no answer within 8 s" in found["server"]["text"]
    assert found["tools"]["state"] == "failure"
    assert "nvidia-smi did not answer in 8 s" in found["tools"]["text"]
    assert found["driver"]["state"] == "failure" and "nvidia-smi did not answer" in found["driver"]["text"]
    assert found["disk"]["state"] == "unknown"
    assert found["settings"]["state"] == "ok"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_no_secret_is_told(tmp_path: Path, form: tuple[str, ...]) -> None:
    config = settings_file(
        tmp_path,
        server_url="http://127.0.0.1:1",
        proxy=f"http://worker:{LOGIN}@127.0.0.1:1",
        docker_host=f"unix://{tmp_path}/none.sock",
        node_id="Not A Node Id",
        api_key_file=str(tmp_path / "nokey"),
    )
    done, _ = run(config, *form)
    assert done.returncode == 2
    assert "Not A Node Id" in done.stdout
    assert KEY not in done.stdout + done.stderr
    assert LOGIN not in done.stdout + done.stderr
    assert done.stderr == ""


def test_a_file_that_was_named_and_is_not_there(tmp_path: Path) -> None:
    done, _ = run(tmp_path / "none.yaml", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert done.returncode == 2
    assert found["settings"]["state"] == "failure" and "none.yaml" in found["settings"]["text"]
    assert "is missing" in found["settings"]["advice"] and "correct it" not in found["settings"]["advice"]
    assert found["server"]["state"] == found["clock"]["state"] == "unknown"


def test_it_changes_nothing(tmp_path: Path) -> None:
    """Not even a state folder is made, and a torn identity stays where it is."""
    config = settings_file(tmp_path, server_url="http://127.0.0.1:1", docker_host=f"unix://{tmp_path}/none.sock")
    run(config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.yaml"]
    state = tmp_path / "state"
    state.mkdir()
    (state / "identity.json").write_text("{torn")
    done, _ = run(config, "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert found["identity"]["state"] == "warning"
    assert [path.name for path in state.iterdir()] == ["identity.json"]
    assert (state / "identity.json").read_text() == "{torn"


def test_a_card_that_the_agent_has_known_and_that_is_gone(tmp_path: Path) -> None:
    """The agent's last list is without it, too: what it has known counts, whether an agent runs or not."""
    gone = Gpu("GPU-0a1b2c3d-dead-4bad-8bad-0badc0ffee00", "nvidia", 2, pci_bus_id="00000000:B3:00.0")
    listed = [Gpu(uuid, "nvidia", index) for index, uuid in enumerate((CUT, WHOLE))]
    state = tmp_path / "state"
    state.mkdir()
    known = Remembered(("nvidia",), tuple(listed), (GoneCard(gone, time.time()),))
    (state / FILE).write_text(json.dumps(as_kept(known)))
    config = settings_file(
        tmp_path,
        server_url="http://127.0.0.1:1",
        docker_host=f"unix://{tmp_path}/none.sock",
        hardware={"tools": {"nvidia-smi": str(cut_machine(tmp_path, old=False))}},
    )
    done, _ = run(config, "--json")
    driver = next(one for one in json.loads(done.stdout)["checks"] if one["name"] == "driver")
    assert driver["state"] == "failure" and gone.uuid in driver["text"]
    assert CUT not in driver["text"].partition("missing")[0]
