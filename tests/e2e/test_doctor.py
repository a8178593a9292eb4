"""``heterofleet-agent doctor`` on a real node, well and with real faults."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

import pytest

from tests.lab import Node

CHECKS = ["settings", "server", "key", "clock", "engine", "runtime", "driver", "tools", "infiniband", "disk", "volumes",
          "unit", "identity", "versions"]  # fmt: skip
CONFIG = "/etc/heterofleet/agent.yaml"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


class Report:
    """One run's JSON: state and words by check."""

    def __init__(self, text: str, exit_code: int) -> None:
        self.text = text
        self.exit_code = exit_code
        body = json.loads(text)
        assert body["exit_code"] == exit_code
        assert [one["name"] for one in body["checks"]] == CHECKS
        self.checks = {one["name"]: one for one in body["checks"]}
        for one in self.checks.values():
            assert set(one) == {"name", "state", "text", "advice"}
            assert one["text"] and (one["advice"] or one["state"] in ("ok", "unknown")), one

    def says(self, name: str, state: str, *words: str) -> None:
        one = self.checks[name]
        assert one["state"] == state, one
        assert [word for word in words if word not in f"{one['text']} {one['advice']}"] == [], one

    def states(self) -> dict[str, str]:
        return {name: one["state"] for name, one in self.checks.items()}


def doctor(node: Node, *words: str, user: str = "root", env: dict[str, str] | None = None) -> Report:
    began = time.monotonic()
    done = node.run(["heterofleet-agent", "doctor", "--json", *words], check=False, user=user, env=env, timeout=90)
    assert time.monotonic() - began < 60
    return Report(done.stdout, done.returncode)


@pytest.fixture
def node(fleet) -> Iterator[Node]:
    one = fleet.lab.nodes[0]
    one.cards.reset()
    yield one
    one.cards.reset()


@contextlib.contextmanager
def written(node: Node, path: str, data: bytes, mode: int) -> Iterator[None]:
    former = node.get(path)
    try:
        node.put(path, data, mode)
        yield
    finally:
        node.put(path, former, 0o600)


def test_a_good_node_is_said_to_be_good(fleet, node: Node) -> None:
    """All lines are ok but that of the build, which in a changed tree is no release; for people and as JSON."""
    report = doctor(node)
    odd = {name: state for name, state in report.states().items() if state != "ok"}
    assert odd in ({}, {"versions": "warning"}), report.text
    assert report.exit_code == (1 if odd else 0)
    report.says("server", "ok", fleet.plane.url)
    report.says("engine", "ok", "overlay2", "live-restore off")
    report.says("driver", "ok", "2 x nvidia-h100-80gb-hbm3-80g by nvml")
    report.says("tools", "ok", "/usr/bin/nvidia-smi answers")
    report.says("infiniband", "ok", "no InfiniBand adapter")
    report.says("unit", "ok", "heterofleet-agent.service runs", "refuses it ports")
    report.says("identity", "ok", f"node {node.name}")
    plain = node.run(["heterofleet-agent", "doctor"], check=False)
    assert plain.returncode == report.exit_code
    lines = plain.stdout.splitlines()
    assert [line.split()[1] for line in lines[:-1] if not line.startswith(" ")] == CHECKS
    assert fleet.plane.key not in report.text + plain.stdout + plain.stderr


def test_an_ordinary_user_gets_what_can_be_said_without_root(fleet, node: Node) -> None:
    report = doctor(node, user="ops")
    assert report.exit_code == 1
    for name in ("settings", "server", "key", "clock", "engine", "runtime", "disk", "volumes", "identity"):
        assert report.checks[name]["state"] == "unknown", report.checks[name]
    report.says("settings", "unknown", "cannot be read by this user", "as root")
    report.says("driver", "unknown", "2 x nvidia", "which cards the agent has known", "as root")
    report.says("unit", "ok", "heterofleet-agent.service runs")


def test_without_docker(fleet, node: Node) -> None:
    try:
        node.stop_engine()
        report = doctor(node)
    finally:
        node.start_engine()
    assert report.exit_code == 2
    report.says("engine", "failure", "docker.sock", "systemctl start docker")
    report.says("runtime", "unknown", "no engine answers")
    report.says("disk", "unknown", "no engine answers", "/opt/heterofleet")
    report.says("server", "ok")


def test_with_the_wrong_key_in_an_open_file(fleet, node: Node) -> None:
    wrong = "a-key-of-another-fleet-0123456789"
    with written(node, "/etc/heterofleet/agent.key", wrong.encode(), 0o644):
        report = doctor(node)
    assert report.exit_code == 2
    report.says("key", "failure", "refuses the key", "401", "open to others (mode 0644)", "chmod 0600")
    report.says("server", "ok", "answers")
    report.says("clock", "unknown")
    report.says("versions", "warning" if "wanted a release" in report.text else "unknown", "not known")
    assert wrong not in report.text


def test_with_a_server_that_is_not_there_and_one_that_has_no_name(fleet, node: Node) -> None:
    report = doctor(node, env={"HETEROFLEET_SERVER_URL": "http://198.18.0.1:1", "https_proxy": "http://proxy:1"})
    assert report.exit_code == 2
    report.says("server", "failure", "port 1", "refused", "firewalls", "https_proxy")
    for name in ("key", "clock"):
        report.says(name, "unknown")
    report = doctor(node, env={"HETEROFLEET_SERVER_URL": "https://no-such-host.invalid:3333"})
    report.says("server", "failure", "no-such-host.invalid has no address", "resolv.conf")


def test_with_a_clock_that_is_wrong(fleet, node: Node) -> None:
    report = doctor(node, env={"LD_PRELOAD": FAKETIME, "FAKETIME": "+120s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"})
    report.says("clock", "warning", "120 s ahead of the control plane's clock", "time server")
    report.says("key", "ok")


def test_with_a_full_disk_and_settings_that_are_wrong(fleet, node: Node) -> None:
    place, config = "/run/doctor-full", "/run/doctor-agent.yaml"
    settings = node.get(CONFIG).decode()
    try:
        node.sh(f"mkdir {place}; mount -t tmpfs -o size=100k,nr_inodes=64 tmpfs {place}")
        node.sh(f"dd if=/dev/zero of={place}/filler bs=4k 2>/dev/null || true")
        node.put(
            config, f"{settings}\nstate_dir: {place}\ndisk_min_free_mib: 90000000\nvolumes_allow: [/none]\n", 0o600
        )
        report = doctor(node, "--config", config)
        assert report.exit_code == 2
        report.says("disk", "failure", f"{place} (state folder) has 0 MiB free", "inodes free")
        report.says("disk", "failure", "/var/lib/docker (images)", "wanted 90000000 MiB", "docker system df")
        report.says("volumes", "warning", "/none", "volumes_allow")
        report.says("identity", "ok", "none yet")
        node.put(config, f"{settings}\nnode_idd: x\nworkers: 0\n", 0o600)
        report = doctor(node, "--config", config)
        assert report.exit_code == 2
        report.says("settings", "failure", "node_idd", "node_id", "config check")
        report.says("engine", "ok", "no settings could be read")
        report.says("volumes", "unknown")
    finally:
        node.sh(f"umount {place} || true; rmdir {place}; rm -f {config}")


def test_with_cards_that_are_lost_a_driver_that_fails_and_a_tool_that_hangs(fleet, node: Node) -> None:
    node.cards.lose(1)
    report = doctor(node)
    report.says("driver", "warning", "GPU is lost", "power it off and on", "by nvml")
    node.cards.clear_faults()
    node.cards.fault("init", error=18)
    report = doctor(node)
    assert report.exit_code == 2
    report.says("driver", "failure", "reboot")
    node.cards.clear_faults()
    with node.cards.edit() as state:
        state["smi"] = {"hang": True}
    report = doctor(node)
    report.says("tools", "warning", "nvidia-smi did not answer in 8 s", "/usr/bin/nvidia-smi", "dmesg")
    report.says("driver", "ok")
    node.cards.clear_faults()
    left = node.sh("ps -eo args= | grep '[n]vidia-smi -L' || true")
    assert left == ""


def test_without_an_agent_that_runs(fleet, node: Node) -> None:
    try:
        node.run(["systemctl", "stop", "heterofleet-agent"])
        node.run(["systemctl", "disable", "--quiet", "heterofleet-agent"])
        report = doctor(node)
    finally:
        node.run(["systemctl", "enable", "--quiet", "--now", "heterofleet-agent"])
    assert report.exit_code == 1
    report.says("unit", "warning", "inactive", "systemctl start", "does not start with the machine")
