"""The lab's nodes are machines: they boot, lose power and network, and have an engine of their own."""

from __future__ import annotations

import time

import pytest

from tests.lab import Lab, LabError, Node

CONFINED_UNIT = """\
[Service]
Type=notify
NotifyAccess=all
WatchdogSec=60
Restart=always
OOMScoreAdjust=-900
SystemCallFilter=~listen
SystemCallErrorNumber=EPERM
ProtectSystem=full
ProtectHome=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
PrivateTmp=yes
ExecStart=/usr/bin/python3 /opt/confined.py
"""
CONFINED_PROGRAM = """\
import errno, os, socket, time
listening = socket.socket()
listening.bind(("127.0.0.1", 0))
try:
    listening.listen()
    said = "listened"
except OSError as error:
    said = errno.errorcode[error.errno]
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
    notify.connect(os.environ["NOTIFY_SOCKET"])
    notify.send(("READY=1\\nSTATUS=" + said).encode())
time.sleep(600)
"""


def test_three_nodes_boot_with_fixed_names_and_addresses(lab: Lab) -> None:
    nodes = lab.nodes[:3]
    assert [(n.name, n.address) for n in nodes] == [
        ("hf-node-1", "198.18.0.11"),
        ("hf-node-2", "198.18.0.12"),
        ("hf-node-3", "198.18.0.13"),
    ]
    for node in nodes:
        assert node.run(["systemctl", "is-system-running"]).stdout.strip() == "running"
        assert node.sh("hostname") == node.name
        assert node.docker("info", "-f", "{{.Driver}}").stdout.strip() == "overlay2"
    assert lab.status()["state"] == "up"


def test_each_node_has_identities_of_its_own(lab: Lab) -> None:
    nodes = lab.nodes[:3]
    for what in ("cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "docker info -f '{{.ID}}'"):
        seen = {node.sh(what) for node in nodes}
        assert len(seen) == 3, f"{what} is not each node's own: {seen}"


def test_ssh_works_for_root_and_for_an_operator_with_sudo(lab: Lab) -> None:
    node = lab.node(1)
    assert node.ssh(["id", "-un"]).stdout.strip() == "root"
    assert node.ssh(["sudo", "-n", "id", "-un"], user="ops").stdout.strip() == "root"
    assert node.ssh(["printf", "%s", "a b  'c'"]).stdout == "a b  'c'"


def test_files_arrive_whole_with_their_mode(node: Node) -> None:
    data = bytes(range(256)) * 40
    node.put("/var/tmp/some folder/file", data, mode=0o640)
    assert node.get("/var/tmp/some folder/file") == data
    assert node.sh("stat -c %a '/var/tmp/some folder/file'") == "640"
    with pytest.raises(LabError, match="cannot read"):
        node.get("/var/tmp/nothing-here")


def test_a_confined_notify_unit_cannot_listen(node: Node) -> None:
    """What the agent's unit relies on: notify, sandboxing, and the kernel refusing listen(2)."""
    node.put("/opt/confined.py", CONFINED_PROGRAM)
    node.put("/etc/systemd/system/confined.service", CONFINED_UNIT)
    try:
        node.sh("systemctl daemon-reload; systemctl start confined")
        assert node.sh("systemctl show -P StatusText confined") == "EPERM"
        assert node.sh("systemctl show -P ActiveState confined") == "active"
    finally:
        node.sh("systemctl stop confined; rm -f /etc/systemd/system/confined.service; systemctl daemon-reload")


def test_containers_run_and_end_as_told(node: Node) -> None:
    ended = node.docker("run", "--rm", "--init", "hf-lab/task:1", "print", "hello", "exit", "3", check=False)
    assert (ended.returncode, ended.stdout) == (3, "hello\n")
    killed = node.docker("run", "--rm", "-m", "24m", "--memory-swap", "24m", "hf-lab/task:1", "eat", "99", check=False)
    assert killed.returncode == 137
    client = node.docker_client()
    box = client.containers.run("hf-lab/task:1", ["on-term", "7", "forever"], detach=True)
    try:
        time.sleep(0.3)
        box.stop(timeout=5)
        assert box.wait()["StatusCode"] == 7
    finally:
        box.remove(force=True)
        client.close()


def test_a_served_task_becomes_ready_after_its_delay(node: Node) -> None:
    box = node.docker("run", "-d", "-p", "8123:8123", "hf-lab/task:1", "serve", "8123", "2", "forever").stdout.strip()
    ask = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://{node.address}:8123/health"]
    try:
        seen = []
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and "200" not in seen:
            seen.append(node.run(ask, check=False).stdout)
            time.sleep(0.2)
        assert "503" in seen
        assert seen[-1] == "200"
    finally:
        node.docker("rm", "-f", box)


def _reaches_the_machine(node: Node) -> bool:
    ask = ["curl", "-s", "-m", "1", "-o", "/dev/null", "http://198.18.0.1:5000/v2/"]
    return node.run(ask, check=False).returncode == 0


@pytest.mark.parametrize("how", ["disconnect", "drop"])
def test_the_network_is_cut_and_healed(node: Node, how: str) -> None:
    assert _reaches_the_machine(node)
    node.cut_network(how)  # type: ignore[arg-type]
    assert not _reaches_the_machine(node)
    node.heal_network()
    deadline = time.monotonic() + 40
    while not _reaches_the_machine(node):
        assert time.monotonic() < deadline, "no way to the machine after healing"
    assert node.address in node.sh("ip -4 -br addr")


def test_a_power_cut_ends_everything_and_keeps_the_disk(node: Node) -> None:
    box = node.docker("run", "-d", "--name", "cut-me", "hf-lab/task:1").stdout.strip()
    before = node.sh("cat /proc/sys/kernel/random/boot_id")
    machine = node.sh("cat /etc/machine-id; touch /tmp/volatile; touch /var/tmp/durable")
    node.power_cut()
    assert not node.running
    with pytest.raises(LabError, match="powered off"):
        _ = node.docker_socket
    node.power_on()
    assert node.sh("cat /proc/sys/kernel/random/boot_id") != before
    assert node.sh("cat /etc/machine-id; ls /tmp/volatile 2>/dev/null || true; ls /var/tmp/durable").startswith(machine)
    assert "/tmp/volatile" not in node.sh("ls /tmp/volatile 2>/dev/null || true")
    assert node.docker("inspect", "-f", "{{.State.Running}}", box).stdout.strip() == "false"
    node.docker("rm", "-f", box)


def test_the_engine_stops_starts_and_freezes(node: Node) -> None:
    node.stop_engine()
    assert "Cannot connect" in node.docker("ps", check=False).stderr
    node.start_engine()
    assert node.docker("ps", "-q").returncode == 0
    node.freeze_engine()
    assert node.run(["timeout", "1", "docker", "ps"], check=False).returncode == 124
    node.thaw_engine()
    assert node.docker("ps", "-q").returncode == 0
