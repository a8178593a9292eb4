"""No agent listens: seen ten times a second through the main job and a restart, and held by the kernel."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtime.agent.doctor.unit import UNIT
from runtime.artifacts import scripts
from runtime.artifacts.build import build
from tests.demo import fleet as installing
from tests.demo import play
from tests.demo.story import PRIVATE_IMAGE, SCENES
from tests.e2e import port_trial
from tests.e2e.conftest import Fleet
from tests.e2e.socket_watch import Watch, put_into
from tests.lab import Lab, Node
from tests.lab.process import Progress, run, wait_for

# Opens one socket of every kind that an agent must not have, says so, and waits to be ended.
PLANTED = """
import os, socket, struct, sys
held = []
def hold(name, family, kind, protocol=0, at=None, listen=False):
    try:
        one = socket.socket(family, kind, protocol)
        if at is not None:
            one.bind(at)
        if listen:
            one.listen()
        held.append(one)
        print(name, end=" ")
    except OSError as error:
        print("without-" + name, end=" ")
hold("tcp", socket.AF_INET, socket.SOCK_STREAM, 0, ("127.0.0.1", 0), True)
hold("tcp6", socket.AF_INET6, socket.SOCK_STREAM, 0, ("::", 0), True)
hold("bound", socket.AF_INET, socket.SOCK_STREAM, 0, ("127.0.0.1", 0))
hold("udp", socket.AF_INET, socket.SOCK_DGRAM, 0, ("127.0.0.1", 0))
hold("udp6", socket.AF_INET6, socket.SOCK_DGRAM, 0, ("::", 0))
hold("unix", socket.AF_UNIX, socket.SOCK_STREAM, 0, "\\0planted-stream", True)
hold("dgram", socket.AF_UNIX, socket.SOCK_DGRAM, 0, "\\0planted-datagram")
hold("raw", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
hold("packet", socket.AF_PACKET, socket.SOCK_RAW)
hold("netlink", socket.AF_NETLINK, socket.SOCK_RAW, 15, (0, 1))
# Two that it may have, and that are in no table: not connected yet, and reset by the other side.
held.append(socket.socket())
with socket.create_server(("127.0.0.1", 0)) as server:
    held.append(socket.create_connection(server.getsockname()))
    other = server.accept()[0]
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
print(flush=True)
sys.stdin.read()
"""

FOUND_AS = {
    "tcp": "listens on 0100007F:",
    "tcp6": "listens on 00000000000000000000000000000000:",
    "bound": "in no table",
    "udp": "udp bound to 0100007F:",
    "udp6": "udp bound to 00000000000000000000000000000000:",
    "unix": "unix, accepts on @planted-stream",
    "dgram": "unix, bound to @planted-datagram",
    "raw": ": raw",
    "packet": ": packet",
    "netlink": "netlink family 15",
}


@contextlib.contextmanager
def planted(node: Node) -> Iterator[list[str]]:
    """A stranger with sockets of every forbidden kind, put into the control group of the agent's unit."""
    process = subprocess.Popen(
        ["docker", "exec", "-i", node.name, "python3", "-I", "-c", f"import os\nprint(os.getpid())\n{PLANTED}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid, names = process.stdout.readline().strip(), process.stdout.readline().split()
    put_into(node, UNIT, pid)
    try:
        yield names
    finally:
        process.communicate(timeout=30)


def test_a_planted_listener_of_every_kind_is_found(fleet) -> None:
    """The watcher that finds nothing below is shown to find what there is to find."""
    node = fleet.lab.nodes[0]
    with Watch(node, UNIT) as watch, planted(node) as names:
        watch.look(4)
    assert not [name for name in names if name.startswith("without-")]
    assert set(names) == set(FOUND_AS)
    missed = {name for name, words in FOUND_AS.items() if not any(words in one for one in watch.report["offences"])}
    assert missed == set(), watch.report["offences"]
    # The bound one, and not the two that stand beside it.
    assert len([one for one in watch.report["offences"] if FOUND_AS["bound"] in one]) == 1, watch.report["offences"]


def main_pid(node: Node) -> str:
    return node.run(["systemctl", "show", "-p", "MainPID", "--value", UNIT]).stdout.strip()


@pytest.fixture(scope="module")
def another_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of these sources with one comment more: another release."""
    folder = tmp_path_factory.mktemp("another")
    tree = folder / "tree"
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    run(["git", "clone", "--quiet", "--shared", installing.ROOT, tree])
    with (tree / "runtime" / "agent" / "main.py").open("a") as main:
        main.write("# another release\n")
    run(["git", "-C", tree, *who, "commit", "--quiet", "--all", "--message", "another"])
    build(tree, folder / "out", ("amd64",), allow_dirty=False, progress=print)
    return folder / "out"


def update_everywhere(fleet: Fleet, *words: str) -> list[str]:
    """By the script, on all nodes side by side; the process ids of the agents that run then."""

    def one(node: Node) -> str:
        node.run(["curl", "-fsSLo", "/root/update.sh", f"{fleet.plane.url}/update-agent-quick.sh"])
        done = node.run(["sh", "/root/update.sh", *words], check=False, timeout=150)
        node.run(["rm", "/root/update.sh"])
        assert done.returncode == 0, f"{node.name}: {done.stdout}{done.stderr}"
        return main_pid(node)

    with ThreadPoolExecutor(len(fleet.lab.nodes)) as pool:
        return list(pool.map(one, fleet.lab.nodes))


def test_no_agent_listens_through_the_main_job_an_update_and_the_way_back(fleet: Fleet, another_build: Path) -> None:
    """All sockets of all processes of every agent's unit, while the seven tasks of the main job run and while each
    agent is updated to another release, and put back."""
    fleet.lab.registry.push_files(PRIVATE_IMAGE, {"etc/private": "only with a login\n"})
    own = installing.agent_builds(Progress())
    nodes = fleet.lab.nodes
    watches = [Watch(node, UNIT) for node in nodes]
    with contextlib.ExitStack() as stack:
        for watch in watches:
            stack.enter_context(watch)
        tasks = play.run_story(fleet.plane, fleet.lab, print)
        runs = [[main_pid(node) for node in nodes]]
        installing.publish_builds(fleet.plane, another_build)
        runs.append(update_everywhere(fleet))
        installing.publish_builds(fleet.plane, own)
        runs.append(update_everywhere(fleet, "--rollback"))
        installing.wait_online(fleet.plane, len(nodes), 2)
        for scene, task in tasks:
            if scene.stays:
                fleet.plane.cli("tasks", "stop", task["id"])
                fleet.wait(task["id"], "ended")
    assert len(tasks) == len(SCENES)
    for node, watch, pids in zip(nodes, watches, zip(*runs, strict=True), strict=True):
        report = watch.report
        print(node.name, json.dumps(report))
        assert report["offences"] == [], node.name
        # That it looked: often, at the agents before and after each change, and at their sockets.
        assert report["samples"] > 50
        assert report["gaps"] <= report["samples"] // 20, report
        assert len(set(pids)) == len(runs)
        assert set(pids) <= set(report["processes"])
        assert report["sockets"] > 5
        assert {"tcp", "unix"} <= set(report["kinds"])


CLOSED = ("tcp", "tcp6", "unix", "unix with a file", "a child", "another program", "io_uring")
FREE = ("connect", "resolve", "mount", "vendor's tool")
I386 = ("i386 socketcall", "i386 listen")
TRIAL, TRIAL_UNIT = "/run/port-trial.py", "heterofleet-port-trial.service"


def test_the_unit_closes_every_door_to_a_port_and_nothing_else(lab: Lab) -> None:
    """A stranger under the agent's own unit: listen is EPERM whatever the family and whoever tries, by the kernel.

    ``bind`` is not refused: the C library binds netlink sockets to learn the machine's addresses, and without
    ``listen`` no stream comes in. That no UDP socket is bound is what the watcher looks at. The same trials outside
    of the unit all succeed, so every door is there on this machine.
    """
    node = lab.node(1)
    node.put(TRIAL, Path(port_trial.__file__).read_bytes())
    text = scripts.environment().get_template("heterofleet-agent.service.j2").render()
    trial, count = re.subn(r"(?m)^ExecStart=.*$", f"ExecStart=/usr/bin/python3 -I {TRIAL} /run/inside.json", text)
    assert count == 1
    try:
        node.put(f"/run/systemd/system/{TRIAL_UNIT}", trial)
        node.run(["systemctl", "daemon-reload"])
        node.run(["systemctl", "start", TRIAL_UNIT])
        inside = json.loads(wait_for_file(node, "/run/inside.json"))
        node.run(["python3", "-I", TRIAL, "/run/outside.json"])
        outside = json.loads(node.get("/run/outside.json"))
    finally:
        node.sh(
            f"systemctl stop {TRIAL_UNIT}; rm -f /run/systemd/system/{TRIAL_UNIT} {TRIAL} /run/inside.json "
            "/run/outside.json /run/port-trial-*.sock; systemctl daemon-reload"
        )
    print(inside, outside)
    assert {name: inside[name] for name in CLOSED} == dict.fromkeys(CLOSED, "EPERM")
    assert {name: inside[name] for name in FREE} == dict.fromkeys(FREE, "open")
    assert set(outside.values()) == {"open"}
    if platform.machine() == "x86_64":
        assert {name: inside[name] for name in I386} == dict.fromkeys(I386, "EPERM")


def wait_for_file(node: Node, path: str) -> bytes:
    wait_for(f"{path} is there", lambda: node.run(["test", "-e", path], check=False).returncode == 0 or "not yet", 30)
    return node.get(path)
