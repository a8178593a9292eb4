"""The dynamic inventory of a real control plane, as Ansible takes it; and what it says when there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.control_plane import ControlPlane
from tests.lab.simulated_node import SimulatedNode

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = ROOT / "inventory" / "heterofleet.py"
BIN = Path(sys.executable).parent
TEMPLATE = "{{ 6 * 7 }}"
OURS = {"dynamic-a", "dynamic-b"}


@pytest.fixture(scope="module")
def known(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Two nodes that beat, one of them with odd words in what it says of itself."""
    first = SimulatedNode(plane.url, plane.key, "dynamic-a", cards=2)
    second = SimulatedNode(plane.url, plane.key, "dynamic-b")
    host: dict[str, Any] = {"cpu_cores": 4, "memory_total_mib": 1024}
    assert (
        first.beat(host={**host, "hostname": TEMPLATE, "mgmt_addr": "192.168.3.11"}, labels={"odd": TEMPLATE})[0] == 200
    )
    build = {"version": "0.2.0", "commit": "0123456789ab", "dirty": True, "arch": "arm64"}
    assert second.beat(host={**host, "hostname": "b", "mgmt_addr": "-oProxyCommand=reboot"}, agent=build)[0] == 200
    assert plane.request("POST", "/api/v1/nodes/dynamic-b/cordon", {"reason": "a test"})[0] == 200
    yield plane
    for name in OURS:
        plane.request("DELETE", f"/api/v1/nodes/{name}?force=true")


def environ(plane: ControlPlane, home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "HETEROFLEET_"))}
    token = plane.token_file.read_text().strip()
    return {**kept, "HOME": str(home), "HETEROFLEET_SERVER_URL": plane.url, "HETEROFLEET_TOKEN": token, **more}


def run(words: list[Any], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), env=env, cwd=env["HOME"], capture_output=True, text=True, timeout=120)


def test_ansible_takes_it(known: ControlPlane, tmp_path: Path) -> None:
    """Groups and variables arrive, no secret does, and what an agent says is no template for the controller."""
    env = environ(known, tmp_path)
    listed = run([BIN / "ansible-inventory", "-i", SCRIPT, "--list"], env)
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    for group, name in {
        "schedulable": "dynamic-a",
        "vendor_nvidia": "dynamic-a",
        "class_nvidia_l4_24g": "dynamic-a",
        "cordoned": "dynamic-b",
        "arch_arm64": "dynamic-b",
        "version_0_2_0": "dynamic-b",
        "dirty": "dynamic-b",
        "cards_none": "dynamic-b",
    }.items():
        # The control plane of all rooms knows nodes of other tests, too.
        assert OURS & set(found[group]["hosts"]) == {name}, group
    assert set(found["nodes"]["hosts"]) >= OURS
    assert found["_meta"]["hostvars"]["dynamic-a"]["ansible_host"] == "192.168.3.11"
    assert "ansible_host" not in found["_meta"]["hostvars"]["dynamic-b"]
    assert found["_meta"]["hostvars"]["dynamic-b"]["heterofleet_cordon"]["reason"] == "a test"
    for secret in (known.key, env["HETEROFLEET_TOKEN"]):
        assert secret not in listed.stdout + listed.stderr

    words = "{{ heterofleet_hostname }} {{ heterofleet_labels.odd }} {{ heterofleet_cards }}"
    said = run(
        [
            BIN / "ansible",
            "-i",
            SCRIPT,
            "-c",
            "local",
            "dynamic-a",
            "-m",
            "ansible.builtin.debug",
            "-a",
            f"msg='{words}'",
        ],
        env,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{TEMPLATE} {TEMPLATE}" in said.stdout and "42" not in said.stdout


def test_one_host(known: ControlPlane, tmp_path: Path) -> None:
    one = run([sys.executable, SCRIPT, "--host", "dynamic-a"], environ(known, tmp_path))
    assert one.returncode == 0 and json.loads(one.stdout)["heterofleet_cards"] == {"nvidia-l4-24g": 2}


def test_the_settings_of_the_command_line_hold(known: ControlPlane, tmp_path: Path) -> None:
    env = environ(known, tmp_path)
    token = env.pop("HETEROFLEET_TOKEN")
    url = env.pop("HETEROFLEET_SERVER_URL")
    config = tmp_path / ".config" / "heterofleet" / "config.yaml"
    config.parent.mkdir(parents=True)
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    config.write_text(f"server_url: {url}\ntoken_file: {tmp_path / 'token'}\n")
    listed = run([sys.executable, SCRIPT, "--list"], env)
    assert listed.returncode == 0, listed.stderr
    assert "dynamic-a" in json.loads(listed.stdout)["nodes"]["hosts"]


@pytest.mark.parametrize(
    ("words", "change", "code", "sentence"),
    [
        (["--list"], {"HETEROFLEET_SERVER_URL": ""}, 2, "server_url"),
        (["--list"], {"HETEROFLEET_SERVER_URL": "http://example.org"}, 2, "plain http://"),
        (["--list"], {"HETEROFLEET_TOKEN": ""}, 3, "no operator token given"),
        (["--list"], {"HETEROFLEET_TOKEN": "wrong-token"}, 3, "bad_token"),
        (["--list"], {"HETEROFLEET_SERVER_URL": "http://127.0.0.1:9"}, 4, "cannot reach a control plane"),
        (["--host", "nobody"], {}, 5, "node_not_found"),
        ([], {}, 2, "one of the arguments --list --host is required"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    known: ControlPlane, tmp_path: Path, words: list[str], change: dict[str, str], code: int, sentence: str
) -> None:
    done = run([sys.executable, SCRIPT, *words], environ(known, tmp_path, **change))
    assert done.returncode == code and done.stdout == "", done.stderr
    assert sentence in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 or "usage:" in done.stderr


def test_another_python_without_our_package_is_told_so(known: ControlPlane, tmp_path: Path) -> None:
    """A copy of the script alone, far from the project, under a Python that has nothing installed."""
    copy = tmp_path / "alone" / "inventory" / "heterofleet.py"
    copy.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, copy)
    done = run(["/usr/bin/python3", "-S", copy, "--list"], environ(known, tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    assert "has no module runtime; install heterofleet[cli] for it" in done.stderr
