"""The agent's InfiniBand ports, from a real agent that sees a made folder where the kernel has its own."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.agent_link.stub_server import StubServer, beat_answer
from tests.integration.agent_link.test_agent_command import AGENT, HEARTBEAT, environment, good_config, run
from tests.integration.waiting import until

SEEN = """
mount -t tmpfs none /sys/class && mkdir /sys/class/infiniband && mount --bind "$0" /sys/class/infiniband && exec "$@"
"""
"""In a mount namespace of its own: nothing outside sees it."""

FABRICS = [{"name": "ib-a", "hcas": ["ibx_0", "ibx_9"]}]


@contextmanager
def agent(tmp_path: Path, url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    config = good_config(tmp_path, url, fabrics=FABRICS)
    command = ["unshare", "-m", "sh", "-c", SEEN, str(folder), *AGENT, "run", "--config", config]
    child = subprocess.Popen(command, env=environment(tmp_path), cwd=tmp_path)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(40)
        finally:
            child.kill()


def adapter(folder: Path, name: str, **files: str) -> Path:
    """As the kernel's, with invented values."""
    port = folder / name / "ports" / "1"
    (port / "gids").mkdir(parents=True)
    (folder / name / "device").mkdir()
    (folder / name / "device" / "numa_node").write_text("1\n")
    (port / "gids" / "0").write_text("fe80:0000:0000:0000:0a0b:0c0d:0e0f:0102\n")
    known = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "sm_lid": "0x1"}
    for file, text in {**known, "link_layer": "InfiniBand", **files}.items():
        (port / file).write_text(text + "\n")
    return port


def beats(server: StubServer) -> list[dict[str, Any]]:
    return [request.body for request in server.of(HEARTBEAT)]


def named(body: dict[str, Any]) -> bool:
    return "hcas" not in body and "hcas" in body["digests"]


def told(server: StubServer) -> list[list[dict[str, Any]]]:
    return [body["hcas"] for body in beats(server) if "hcas" in body]


def test_ports_with_the_fabrics_of_the_settings(server: StubServer, tmp_path: Path) -> None:
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    folder = tmp_path / "adapters"
    adapter(folder, "ibx_0")
    adapter(folder, "ibx_1", state="1: DOWN", phys_state="2: Polling", rate="10 Gb/sec (4X)")
    with agent(tmp_path, server.url, folder):
        (ports,) = until("the ports", lambda: told(server))
        until("a beat that only names them", lambda: [body for body in beats(server) if named(body)])
    same = {"link_layer": "InfiniBand", "gid_prefix": "fe80:0000:0000:0000", "numa_node": 1}
    assert ports == [
        {"name": "ibx_0", "port": 1, "state": "active", "rate_gbps": 400.0, **same, "fabric": "ib-a"},
        # A prefix that two ports share makes no fabric of the second, and a port that is down still has a rate.
        {"name": "ibx_1", "port": 1, "state": "down", "rate_gbps": 10.0, **same},
    ]
    assert len(told(server)) == 1, "sent once, then named by its digest"


def test_a_driver_that_never_answers_delays_no_beat(server: StubServer, tmp_path: Path) -> None:
    """Its file is read by a child; what it would have said is not known meanwhile, and told as soon as it is."""
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    folder = tmp_path / "adapters"
    rate = adapter(folder, "ibx_0") / "rate"
    rate.unlink()
    os.mkfifo(rate)
    with agent(tmp_path, server.url, folder):
        until("beats", lambda: len(beats(server)) >= 4)
        assert [body for body in beats(server) if "hcas" in body or named(body)] == []
        until("somebody who reads the file", lambda: answers(rate, b"200 Gb/sec (4X HDR)\n"), timeout=90)
        (ports,) = until("the ports", lambda: told(server))
    assert [(port["name"], port["rate_gbps"]) for port in ports] == [("ibx_0", 200.0)]


def answers(file: Path, text: bytes) -> bool:
    """Whether somebody was reading, and has been answered."""
    try:
        writing = os.open(file, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        assert error.errno == errno.ENXIO
        return False
    os.write(writing, text)
    os.close(writing)
    return True


def test_inventory_names_the_fabrics_of_settings_that_can_be_read(tmp_path: Path) -> None:
    """It needs none; those that are wrong name no fabric, and stop nothing."""
    folder = tmp_path / "adapters"
    adapter(folder, "ibx_0")
    good = json.dumps(FABRICS)
    for settings, fabric in (
        ({}, None),
        ({"HETEROFLEET_FABRICS": good}, "ib-a"),
        ({"HETEROFLEET_FABRICS": "ib-a"}, None),
    ):
        done = run(tmp_path, "inventory", "--json", "--no-gpu", "--ib-root", str(folder), **settings)
        (hca,) = json.loads(done.stdout)["hcas"]
        assert (done.returncode, hca["name"], hca["fabric"], hca["problem"]) == (0, "ibx_0", fabric, None)
