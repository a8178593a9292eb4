"""The agent's link as a whole, against a server of the test's own."""

from __future__ import annotations

import json
import logging
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runtime.agent.hardware.nvidia import Nvidia
from runtime.agent.hardware.tools import ToolRunner
from runtime.agent.link.errors import Refused
from runtime.agent.link.heartbeat import FIRST_INTERVAL_S
from runtime.protocol.instructions import Channel
from runtime.protocol.states import Status
from runtime.protocol.tasks import LogChunk, TaskUpdate
from tests.integration.agent_link.stub_server import Reply, StubServer, beat_answer, problem, stub_server, wait_until
from tests.integration.agent_link.whole_agent import CountingExecutor, whole_agent

HEARTBEAT = "/api/v1/agent/heartbeat"
PENDING = "/api/v1/agent/pending"
FAST = {"connect_s": 1.0, "beat_read_s": 0.4, "read_s": 2.0}


@contextmanager
def running(*arguments, **options) -> Iterator:
    agent, executor, instructions = whole_agent(*arguments, **options)
    agent.start()
    try:
        yield agent, executor, instructions
    finally:
        agent.stop()


def test_the_first_beat_comes_at_once_and_says_everything(server: StubServer, tmp_path) -> None:
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    with running(server.url, tmp_path, labels={"rack": "7"}, fabrics=[{"name": "ib-a", "hcas": ["mlx5_0"]}]):
        first, *_ = server.wait_for(HEARTBEAT)
        later = server.wait_for(HEARTBEAT, 3)[2]
        (hcas,) = wait_until(lambda: [r.body["hcas"] for r in server.of(HEARTBEAT) if "hcas" in r.body])
    body = first.body
    assert (body["protocol"], body["run"], body["seq"], body["leaving"]) == (1, 1, 1, False)
    assert body["node_id"] == "1" and first.headers["x-node-id"] == "1"
    assert first.headers["x-instance-id"] == body["instance_id"]
    assert (body["boot_id"], body["fingerprint"]) == ("boot-1-abcdef", "fingerprint")
    assert body["agent"]["version"] == "dev"
    assert body["agent"]["loops"][0] == {"name": "heartbeat", "overdue": False}
    assert body["host"]["hostname"] and body["host"]["memory_total_mib"] > 0
    assert body["host"]["mgmt_addr"] == "127.0.0.1"
    assert body["docker"]["available"] is True and body["exec_mode"] == "docker" and body["drivers"] == ["docker"]
    assert body["slots"] == {"total": 64, "used": 0} and body["labels"] == {"rack": "7"}
    assert body["fabrics"] == [{"name": "ib-a", "hcas": ["mlx5_0"]}] and body["images"] == ["busybox:1"]
    assert set(later.body) >= {"digests", "host"} and "images" not in later.body and "fabrics" not in later.body
    assert set(later.body["host"]) <= {"cpu_percent", "memory_used_mib", "disks", "uptime_s"}
    assert hcas == []  # looked at, and none


def test_the_server_s_interval_holds(server: StubServer, tmp_path) -> None:
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    with running(server.url, tmp_path):
        beats = server.wait_for(HEARTBEAT, 6)
    gaps = [later.at - earlier.at for earlier, later in zip(beats[2:], beats[3:])]
    assert all(0.8 < gap < FIRST_INTERVAL_S for gap in gaps), gaps


def test_pending_wakes_who_has_something(server: StubServer, tmp_path) -> None:
    server.answers[HEARTBEAT] = beat_answer(pending={"tasks": 2, "slices": 0, "images": 1, "files": 0})
    with running(server.url, tmp_path) as (_, executor, instructions):
        wait_until(lambda: instructions.woken)
    assert executor.told[:2] == ["start", "wake"] and instructions.woken[0] == ["images"]


def test_an_idle_node_asks_for_nothing_but_one_pending_call(server: StubServer, tmp_path) -> None:
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    server.answers[PENDING] = Reply(200, {"tasks": 0, "slices": 0, "images": 0, "files": 0})
    with running(server.url, tmp_path, safety_pull_s=1.0, poll_interval_s=0.1) as (_, executor, instructions):
        server.wait_for(PENDING, 2)
    assert executor.told == ["start", "stop"] and instructions.woken == []
    assert {request.path.split("?")[0] for request in server.requests} == {HEARTBEAT, PENDING}


@pytest.mark.parametrize("reply", [problem(422, "invalid_heartbeat"), Reply(502, b""), beat_answer(pending=None)])
def test_work_is_polled_for_while_beats_bring_no_counts(server: StubServer, tmp_path, reply: Reply) -> None:
    server.answers[HEARTBEAT] = reply
    with running(server.url, tmp_path, poll_interval_s=0.1) as (_, executor, instructions):
        wait_until(lambda: executor.told.count("wake") >= 3)
        wait_until(lambda: ["slices", "images", "files"] in instructions.woken)


@pytest.mark.parametrize("reply", [problem(401, "bad_api_key"), problem(409, "node_id_in_use"), None])
def test_nothing_is_polled_for_while_refused_or_away(server: StubServer, tmp_path, reply: Reply | None) -> None:
    server.answers[HEARTBEAT] = reply or Reply(drop=True)
    with running(server.url, tmp_path, poll_interval_s=0.05, safety_pull_s=1.0, node_id="gpu-a") as (
        agent,
        executor,
        _,
    ):
        wait_until(lambda: agent.heartbeats.status.last_error)
        polled = agent._poll
        ran = []
        polled._work, work = (lambda: (ran.append(1), work())), polled._work
        wait_until(lambda: len(ran) >= 5)
    assert "wake" not in executor.told
    assert server.of(PENDING) == []


@pytest.mark.case("FC-072")
def test_a_wrong_key_is_asked_about_seldom_said_once_and_recovered_from(server: StubServer, tmp_path, caplog) -> None:
    """What happened: agents with an outdated key reconnected ten times a second."""
    server.answers[HEARTBEAT] = problem(401, "bad_api_key")
    with (
        caplog.at_level(logging.INFO),
        running(server.url, tmp_path, refused_s=1.0, poll_interval_s=0.1) as (agent, *_),
    ):
        tries = server.wait_for(HEARTBEAT, 4)
        gaps = [later.at - earlier.at for earlier, later in zip(tries[1:], tries[2:])]
        assert all(gap > 0.85 for gap in gaps), gaps
        assert agent.status().last_error["code"] == "bad_api_key"
        server.answers[HEARTBEAT] = beat_answer()
        wait_until(lambda: agent.heartbeats.status.registered)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1 and "bad_api_key" in errors[0].getMessage()
    assert {request.path for request in server.requests} == {HEARTBEAT}


@pytest.mark.case("FC-072")
def test_after_a_401_nobody_sends_the_key_again_before_its_time(server: StubServer, tmp_path) -> None:
    """What happened: what was learnt of cards and engine in the first second had beats sent at once, each refused, and
    an agent that was stopped sent one more."""
    server.answers[HEARTBEAT] = problem(401, "bad_api_key")
    with running(server.url, tmp_path, poll_interval_s=0.05, safety_pull_s=1.0) as (agent, *_):
        wait_until(lambda: agent.heartbeats.status.last_error)
        client = agent._parts.client
        calls = [
            client.pending,
            client.scheduled_tasks,
            lambda: client.task("t1"),
            lambda: client.instructions(Channel.IMAGE),
            lambda: client.doorbell(f"{server.url}/api/v1/agent/doorbell", 1.0),
            lambda: client.update_task("t1", TaskUpdate("1", 1, "token-12345", Status.RUNNING, Status.COMPLETED)),
            lambda: client.post_logs("t1", LogChunk(1, "token-12345", 0, 1, "x")),
        ]
        for call in calls:
            with pytest.raises(Refused, match="bad_api_key") as refused:
                call()
            assert 0 < refused.value.again_s <= 66
        ran, work = [], agent._poll._work
        agent._poll._work = lambda: (ran.append(agent.heartbeats.loop.wake()), work())
        wait_until(lambda: len(ran) >= 20)
    assert [request.path for request in server.requests] == [HEARTBEAT]


def test_a_key_refused_in_the_middle_is_refused_for_all_calls_and_accepted_for_all(
    server: StubServer, tmp_path
) -> None:
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    with running(server.url, tmp_path, refused_s=1.0) as (agent, *_):
        server.wait_for(HEARTBEAT, 2)
        client = agent._parts.client
        server.answers[PENDING] = problem(401, "bad_api_key")
        with pytest.raises(Refused, match="bad_api_key"):
            client.pending()
        server.answers[PENDING] = Reply(200, {"tasks": 0, "slices": 0, "images": 0, "files": 0})
        with pytest.raises(Refused, match="bad_api_key"):
            client.pending()
        assert len(server.of(PENDING)) == 1

        def accepted() -> bool:
            try:
                return bool(client.pending())
            except Refused:
                return False

        wait_until(accepted)  # a beat has asked again meanwhile
        assert agent.heartbeats.status.registered


@pytest.mark.case("FC-054")
def test_a_server_that_never_answers_is_asked_again_within_limit_and_interval(server: StubServer, tmp_path) -> None:
    """What happened: a dead connection held the loop for hours, with the process alive and its log empty."""
    hanging = [Reply(hang=60), Reply(hang=60)]
    server.answers[HEARTBEAT] = lambda request: hanging.pop() if hanging else beat_answer(interval_s=1)
    with running(server.url, tmp_path, limits=FAST) as (agent, *_):
        agent.heartbeats._backoff.max_s = agent.heartbeats._backoff.first_s = 1.0
        tries = server.wait_for(HEARTBEAT, 3)
        wait_until(lambda: agent.heartbeats.status.registered)
        server.closing.set()
    assert tries[1].at - tries[0].at < 0.4 + 1.0 + 1.0


def test_beats_go_on_while_every_other_call_hangs(server: StubServer, tmp_path) -> None:
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    server.answers[PENDING] = Reply(hang=60)
    with running(server.url, tmp_path, safety_pull_s=1.0):
        server.wait_for(PENDING)
        already = len(server.of(HEARTBEAT))
        beats = server.wait_for(HEARTBEAT, already + 3)[already:]
        assert all(later.at - earlier.at < 10 for earlier, later in zip(beats, beats[1:])), "none waits for the other"
        server.closing.set()


def test_the_server_s_return_brings_a_full_beat(tmp_path) -> None:
    with stub_server() as first:
        first.answers[HEARTBEAT] = beat_answer(interval_s=1)
        port = first.port
        agent, *_ = whole_agent(first.url, tmp_path)
        agent.start()
        wait_until(lambda: "images" not in (first.wait_for(HEARTBEAT, 3)[2].body))
    try:
        wait_until(lambda: agent.heartbeats.status.last_error)
        with stub_server(port) as second:
            second.answers[HEARTBEAT] = beat_answer(interval_s=1)
            assert second.wait_for(HEARTBEAT, deadline_s=40)[0].body["images"] == ["busybox:1"]
    finally:
        agent.stop()


@pytest.mark.case("FC-047")
def test_beats_keep_their_pace_while_the_vendor_s_tool_hangs(server: StubServer, tmp_path) -> None:
    """What happened: a wedged driver took the heartbeat with it, while the node kept looking schedulable."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nsleep 60\n")
    tool.chmod(0o755)
    detector = Nvidia(ToolRunner(deadline_s=1.0), {"nvidia-smi": str(tool)}, use_nvml=False, sysfs=tmp_path)
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    with running(server.url, tmp_path / "state", detectors=[detector]):
        said = "nvidia-smi did not answer in 1 s"
        wait_until(lambda: any(r.body.get("gpu_collector_error") == said for r in server.of(HEARTBEAT)))
        beats = server.wait_for(HEARTBEAT, len(server.of(HEARTBEAT)) + 3)
    gaps = [later.at - earlier.at for earlier, later in zip(beats[2:], beats[3:])]
    assert all(gap < 1.5 for gap in gaps), gaps
    assert {"gpus", "gpu_stats", "gpu_capabilities", "gpu_collect_failures"}.isdisjoint(beats[-1].body)


# Start, stop, status


class Systemd:
    """The receiving end of sd_notify."""

    def __init__(self, path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(10)
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "300000"}

    def next(self) -> str:
        return self.socket.recv(4096).decode()


def test_systemd_hears_ready_without_a_server_and_stopping_first(tmp_path) -> None:
    systemd = Systemd(tmp_path / "notify")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with running(url, tmp_path / "state", environ=systemd.environ):
            assert systemd.next().startswith("READY=1\nSTATUS=node 1")
    assert systemd.next() == "STOPPING=1"


def test_the_watchdog_hears_of_progress_and_nothing_while_a_loop_is_stuck(server: StubServer, tmp_path) -> None:
    systemd = Systemd(tmp_path / "notify")
    server.answers[HEARTBEAT] = beat_answer()
    with running(server.url, tmp_path / "state", environ=systemd.environ) as (agent, *_):
        systemd.next()
        stop = threading.Event()
        watching = threading.Thread(target=agent.run_until, args=(stop,))
        watching.start()
        assert systemd.next() == "WATCHDOG=1"
        agent._poll.deadline_s = -1e9
        wait_until(lambda: agent.stuck_loops() == ["poll"])
        systemd.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            for _ in range(20):
                systemd.next()
        agent._poll.deadline_s = 60
        systemd.socket.settimeout(40)
        assert systemd.next() == "WATCHDOG=1"
        stop.set()
        watching.join(40)
        assert not watching.is_alive()


def test_the_order_of_the_stop(server: StubServer, tmp_path) -> None:
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    agent, executor, _ = whole_agent(server.url, tmp_path)
    agent.start()
    server.wait_for(HEARTBEAT)
    seen_at_stop = []
    executor.stop = lambda deadline_s: seen_at_stop.append((len(server.requests), agent.heartbeats.loop.join(0)))
    agent.stop()
    (before, heartbeat_ended), last = seen_at_stop[0], server.requests[-1]
    assert heartbeat_ended and len(server.requests) == before + 1
    assert last.body["leaving"] is True and last.body["seq"] == before + 1


def test_the_stop_is_over_in_time_when_everything_hangs(server: StubServer, tmp_path) -> None:
    server.answers[HEARTBEAT] = Reply(hang=120)
    executor = CountingExecutor()
    executor.stop_blocks.clear()
    agent, *_ = whole_agent(server.url, tmp_path, executor=executor)
    agent.start()
    server.wait_for(HEARTBEAT)
    began = time.monotonic()
    agent.stop()
    assert time.monotonic() - began < 20
    server.closing.set()


def test_the_status_file(server: StubServer, tmp_path) -> None:
    executor = CountingExecutor()
    executor.holds = True
    server.answers[HEARTBEAT] = beat_answer(interval_s=1)
    path = tmp_path / "status.json"
    with running(server.url, tmp_path, executor=executor, node_id="gpu-a"):
        status = wait_until(lambda: (found := json.loads(path.read_text())) and found["registered"] and found)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(status) >= {
        *("node_id", "instance_id", "run", "version", "server_url", "control_plane_id", "registered"),
        *("last_beat_at", "last_error", "loops", "tasks", "undelivered", "foreign", "stuck_tools"),
    }
    assert (status["node_id"], status["run"], status["seen_revision"]) == ("gpu-a", 1, 5)
    assert status["tasks"] == [{"task_id": "t1", "uid": "u1", "attempt": 1, "phase": "running"}]
    assert {loop["name"] for loop in status["loops"]} >= {"heartbeat", "inventory", "host", "doorbell", "safety-pull"}


def test_a_defaulted_id_that_is_taken_is_given_up_for_a_spare_one(server: StubServer, tmp_path) -> None:
    server.answers[HEARTBEAT] = lambda request: (
        problem(409, "node_id_in_use") if request.body["node_id"] == "1" else beat_answer()
    )
    with running(server.url, tmp_path) as (agent, *_):
        wait_until(lambda: agent.heartbeats.status.registered)
        assert agent.status().node_id.startswith("1-") and server.requests[-1].headers["x-node-id"] != "1"


# The doorbell


def test_the_doorbell_wakes_at_once_and_is_rung_again_after_a_cut(server: StubServer, tmp_path) -> None:
    from http.server import BaseHTTPRequestHandler

    def ring(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.wfile.write(b': hello\n\nevent: wake\ndata: {"channels": ["tasks", "images"]}\n\n')
        handler.wfile.flush()
        handler.close_connection = True

    original = server.handle

    def handle(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.startswith("/api/v1/agent/doorbell"):
            with server.news:
                server.rings.append(handler.path)
                server.keys.append(handler.headers["X-API-Key"])
                server.news.notify_all()
            ring(handler)
            return
        original(handler)

    server.rings, server.keys, server.handle = [], [], handle
    server.answers[HEARTBEAT] = beat_answer(doorbell=f"{server.url}/api/v1/agent/doorbell")
    with running(server.url, tmp_path, node_id="gpu-a") as (_, executor, instructions):
        wait_until(lambda: len(server.rings) >= 2, 40)
        wait_until(lambda: "wake" in executor.told and ["images"] in instructions.woken)
    assert server.rings[0] == "/api/v1/agent/doorbell?node_id=gpu-a" and server.keys[0] == "0123456789abcdef"
